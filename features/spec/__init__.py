"""Feature specs: their content, their YAML text, and what a first pass over data learnt for them."""

from ctr.features.spec.crosses import Cross
from ctr.features.spec.fields import (
    IndexField,
    InputField,
    NamedField,
    column_of,
    columns_of,
    register_field,
)
from ctr.features.spec.loading import (
    LEARNT,
    SPEC,
    FittedSpec,
    is_shipped,
    learnt_from,
    learnt_of,
    load_spec,
    parse_spec,
    read_spec_files,
    require_place_for_spec,
    spec_files,
    spec_of_files,
    unfitted_fingerprint,
    write_fitted_spec,
)
from ctr.features.spec.model import FeatureSpec
from ctr.features.spec.number_fields import Clip, LinearField, NumberField, Scale
from ctr.features.spec.source import FEATURES, FORMATS, LABEL, WEIGHT, Format, Source
from ctr.features.spec.time_fields import UNIX, UNIX_MS, TimeField, is_number, parts_of
from ctr.features.spec.windows import PARTS, SERVED, Window, WindowField, microseconds
from ctr.features.spec.word_fields import KNOWN, CategoryField, ListField, TextField, ValueField, WordField
from ctr.features.spec.yaml_text import dump_yaml

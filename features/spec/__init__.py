"""What a feature spec may say, its YAML text, and what a first pass over data learnt for it."""

from ctr.features.spec.crosses import Cross
from ctr.features.spec.fields import (
    IndexField,
    InputField,
    NamedField,
    column_of,
    columns_of,
    register_field,
)
from ctr.features.spec.fitted import (
    LEARNT,
    SPEC,
    FittedSpec,
    learnt_from,
    learnt_of,
    read_spec_files,
    spec_files,
    spec_of_files,
    unfitted_fingerprint,
)
from ctr.features.spec.loading import is_shipped, load_spec, require_place_for_spec, write_fitted_spec
from ctr.features.spec.model import FeatureSpec
from ctr.features.spec.number_fields import Clip, LinearField, NumberField, Scale
from ctr.features.spec.parsing import parse_spec
from ctr.features.spec.source import FEATURES, FORMATS, LABEL, WEIGHT, Format, Source
from ctr.features.spec.time_fields import TimeField
from ctr.features.spec.time_format import UNIX, UNIX_MS, is_number, parts_of
from ctr.features.spec.windows import PARTS, Window, WindowField, microseconds
from ctr.features.spec.word_fields import KNOWN, CategoryField, ListField, TextField, ValueField, WordField
from ctr.features.spec.yaml_text import dump_yaml

"""From raw rows to a `Batch`: specs, hashing, readers, and the hashed data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.features.batches import Batch, Chunk, MoreFeaturesError, Slots, slot_counts, slot_dtype
from ctr.features.batches import warm_up as warm_up_localize
from ctr.features.dataset import (
    BLOCK_ROWS,
    DatasetManifest,
    DatasetSource,
    is_dataset,
    shuffled,
    write_dataset,
)
from ctr.features.folder import (
    folder_bytes,
    folder_of_bytes,
    remove_drafts,
    replace_folder,
    require_replaceable,
    scratch_folder,
    sha256_of,
)
from ctr.features.inputs import input_files, is_glob, is_uri
from ctr.features.opening import inputs_for, open_source
from ctr.features.readable import read_dictionary
from ctr.features.readers import FAIL, SKIP, BadRowPolicy, BadRows, too_many
from ctr.features.spec import FeatureSpec, load_spec, parse_spec
from ctr.features.transform import Transform
from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.features.example_source import ExampleSource
    from ctr.features.pipeline import Pipeline, batch_of, batch_of_lines, spec_of
    from ctr.features.raw import (
        RawSource,
        RowTexts,
        absence_warnings,
        absent_columns,
        batches_with_texts,
        first_rows,
        fit,
        read_table,
    )
    from ctr.features.tables import check_categories, json_columns, stream_of

# Lazy: training from a hashed data set needs nothing that reads raw files.
__getattr__ = lazy_package(__name__, __file__)

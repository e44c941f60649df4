"""Raw rows -> `Batch`: specs, hashing, readers, and the hashed data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.lazy import lazy_face
from features.batches import Batch, Chunk, Slots, slot_counts, slot_dtype
from features.batches import warm_up as warm_up_localize
from features.dataset import BLOCK_ROWS, DatasetManifest, DatasetSource, is_dataset, shuffled, write_dataset
from features.folder import remove_drafts, replace_folder, require_replaceable, scratch_folder
from features.inputs import input_files, is_glob, is_uri
from features.opening import inputs_for, open_source
from features.readable import read_dictionary
from features.readers import BadRows, too_many
from features.spec import FeatureSpec, load_spec, parse_spec
from features.transform import Transform

if TYPE_CHECKING:
    from features.collision_check import collisions
    from features.example_source import ExampleSource
    from features.first_pass import fit
    from features.pipeline import Pipeline, batch_of, spec_of
    from features.preview import absent_columns
    from features.reading import read_table
    from features.row_texts import RowTexts, batches_with_texts
    from features.source import RawSource
    from features.tables import check_categories

# What reads raw files is loaded by whoever asks for it: training from a hashed data set does without.
__getattr__ = lazy_face(__name__, __file__)

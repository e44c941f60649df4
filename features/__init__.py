"""Raw rows -> `Batch`: specs, hashing, readers, and the hashed data set."""

from features.bad_rows import BadRows, too_many
from features.batch import Batch, Slots, slot_dtype
from features.chunk import Chunk
from features.dataset import DatasetSource
from features.dataset_manifest import DatasetManifest
from features.dataset_writer import BLOCK_ROWS, write_dataset
from features.describe import Description, describe
from features.folder import remove_drafts, replace_folder, scratch_folder
from features.localize import localize, slot_counts
from features.localize import warm_up as warm_up_localize
from features.shuffle import shuffled
from features.source import ExampleSource, RawSource, open_source
from features.spec import FeatureSpec, load_spec, parse_spec
from features.transform import Transform

__all__ = [
    "BLOCK_ROWS",
    "BadRows",
    "Batch",
    "Chunk",
    "DatasetManifest",
    "DatasetSource",
    "Description",
    "ExampleSource",
    "FeatureSpec",
    "RawSource",
    "Slots",
    "Transform",
    "describe",
    "load_spec",
    "localize",
    "open_source",
    "parse_spec",
    "remove_drafts",
    "replace_folder",
    "scratch_folder",
    "shuffled",
    "slot_counts",
    "slot_dtype",
    "too_many",
    "warm_up_localize",
    "write_dataset",
]

"""Raw rows -> `Batch`: specs, hashing, readers, and the hashed data set."""

from features.batches import Batch, Chunk, Slots, slot_counts, slot_dtype
from features.batches import warm_up as warm_up_localize
from features.dataset import BLOCK_ROWS, DatasetManifest, DatasetSource, shuffled, write_dataset
from features.example_source import ExampleSource
from features.first_pass import fit
from features.folder import remove_drafts, replace_folder, require_replaceable, scratch_folder
from features.opening import open_source
from features.readers import BadRows, too_many
from features.source import RawSource
from features.spec import FeatureSpec, load_spec, parse_spec
from features.transform import Transform

"""The hashed data set: writing, reading, shuffling, describing."""

from ctr.features.dataset.cache import cache_folder
from ctr.features.dataset.describe import describe
from ctr.features.dataset.folders import is_dataset, manifest_of, open_folder
from ctr.features.dataset.manifest import DatasetManifest
from ctr.features.dataset.raw_rows import RowNote, raw_file_entries
from ctr.features.dataset.remote_output import ATTEMPTS, RemoteOutput
from ctr.features.dataset.shuffle import shuffled
from ctr.features.dataset.source import DatasetSource
from ctr.features.dataset.unfinished import Done, Unfinished, kept_fit, key_of
from ctr.features.dataset.writer import BLOCK_ROWS, DatasetDraft, dataset_folders, write_dataset

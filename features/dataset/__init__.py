"""The hashed data set: write, read, shuffle, describe."""

from features.dataset.describe import Description, describe
from features.dataset.manifest import DatasetManifest, RawFileEntry, is_dataset, read_manifest
from features.dataset.raw_rows import RowNote, raw_file_entries
from features.dataset.shuffle import shuffled
from features.dataset.source import DatasetSource
from features.dataset.unfinished import Unfinished, kept_fit, key_of
from features.dataset.writer import BLOCK_ROWS, DatasetDraft, dataset_folders, write_dataset

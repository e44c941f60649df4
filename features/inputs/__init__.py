"""Which files the inputs of a command are, and their bytes: on disks, behind URIs, from a pipe."""

from features.inputs.digest import file_digests
from features.inputs.file_rows import FileRows
from features.inputs.file_state import FileState
from features.inputs.input_file import InputFile, LocalFile, partition_columns, suffixes
from features.inputs.listing import input_files, is_glob
from features.inputs.remote import is_uri
from features.inputs.standard_input import StandardInput

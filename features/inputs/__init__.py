"""Which files the inputs of a command are, and their bytes: on disks, behind URIs, from a pipe."""

from ctr.features.inputs.digest import file_digests
from ctr.features.inputs.file_rows import FileRows
from ctr.features.inputs.file_state import FileState
from ctr.features.inputs.input_file import InputFile, LocalFile, partition_columns, suffixes
from ctr.features.inputs.listing import input_files, is_glob
from ctr.features.inputs.remote import is_uri
from ctr.features.inputs.standard_input import StandardInput

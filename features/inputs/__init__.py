"""Which files the inputs of a command are, and their bytes: on disks, behind URIs, from a pipe."""

from ctr.features.inputs.input_file import (
    ChosenRows,
    FileState,
    InputFile,
    LocalFile,
    partition_columns,
    suffixes,
)
from ctr.features.inputs.listing import file_digests, input_files, is_glob
from ctr.features.inputs.remote import is_uri
from ctr.features.inputs.standard_input import StandardInput

"""The files of a command's inputs, and their bytes: on disk, behind URIs, from a pipe."""

from ctr.features.inputs.input_file import (
    BytesFile,
    ChosenRows,
    FileState,
    InputFile,
    LocalFile,
    StandardInput,
)
from ctr.features.inputs.listing import file_digests, input_files, is_glob
from ctr.features.inputs.remote import is_uri, list_remote, remote_file
from ctr.features.inputs.remote_folder import RemoteFolder
from ctr.features.inputs.split_file import SplitFile

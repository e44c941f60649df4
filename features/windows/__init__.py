"""What earlier rows with the same key say of a row: counts, clicks and rates over sliding windows."""

from ctr.features.windows.record_bytes import WindowRecords
from ctr.features.windows.state import (
    WINDOW_FILE,
    difference,
    identity_of,
    load_windows,
    read_windows,
    sha256_of,
    window_files,
    write_windows,
)
from ctr.features.windows.windows import ServedHistory, Windows

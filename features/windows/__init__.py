"""Counts, clicks and rates of earlier rows with the same key, over sliding windows."""

from ctr.features.windows.served import NotingHistory, ServedFeatures
from ctr.features.windows.split import (
    NotedWindows,
    WindowNotes,
    bucket_features,
    needs_totals,
    read_copy,
    take_buckets,
    write_copy,
)
from ctr.features.windows.state import (
    WINDOW_FILE,
    WindowRecords,
    difference,
    identity_of,
    load_windows,
    read_windows,
    write_windows,
)
from ctr.features.windows.windows import ServedHistory, Windows

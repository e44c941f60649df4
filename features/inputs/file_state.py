"""`FileState`: by what a change of a file is noticed."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileState:
    """What differs as soon as a file is replaced, written to, or cut short."""

    device: int
    inode: int
    """With `device`: which file it is; 0 where files have no such number, as behind URIs."""
    size: int
    """In bytes."""
    modified_ns: int
    """Nanoseconds since 1970; 0 if it is not known."""

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        """That of a file on a disk."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def change(self, now: FileState) -> str | None:
        """What has happened since, for users; None if nothing has."""
        if self == now:
            return None
        sizes = f"{self.size:,} bytes before, {now.size:,} now"
        if (self.device, self.inode) != (now.device, now.inode):
            return f"another file has taken its place ({sizes})"
        if self.size != now.size:
            return f"it has {'grown' if now.size > self.size else 'shrunk'} ({sizes})"
        return f"it was written to ({now.size:,} bytes as before, but modified since)"

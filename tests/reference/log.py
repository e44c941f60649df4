"""An entry of a log as one number, written out."""

from __future__ import annotations


def entry(offset: int, z_step: int, n_step: int) -> bytes:
    return (offset + (z_step % 2**15) * 2**21 + n_step * 2**36).to_bytes(6, "little")

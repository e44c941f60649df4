"""The files that keep what `Windows` know: one per window, in the folder of a data set or model."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from ctr.errors import DataError
from ctr.features.folder import MANIFEST
from ctr.features.spec import FeatureSpec
from ctr.features.windows.windows import Windows

WINDOW_FILE = re.compile(r"window-[0-9]{2,}\.safetensors")
"""The names that such files have."""


def window_files(spec: FeatureSpec) -> list[str]:
    """Their names, for the windows of `spec`."""
    return [f"window-{k:02d}.safetensors" for k in range(len(spec.windows))]


def write_windows(windows: Windows, folder: Path, beside: Path) -> list[str]:
    """Write the files into `folder`, as readable as the file `beside`; returns their names.

    Raises OSError and SafetensorError.
    """
    names = window_files(windows.spec)
    for k, name in enumerate(names):
        save_file(windows.arrays(k), folder / name, {"window": _identity(windows.spec, k)})
        shutil.copymode(beside, folder / name)  # safetensors keeps its files from other users
    return names


def sha256_of(path: Path) -> str:
    """Of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_windows(spec: FeatureSpec, folder: Path) -> Windows:
    """What the files in the folder of a data set or model say, for the windows of `spec`: see `read_windows`.

    Raises DataError also when there are none, or they are not those that its manifest names.
    """
    try:
        sums = json.loads((folder / MANIFEST).read_bytes()).get("sha256", {})
    except (OSError, ValueError, AttributeError) as error:
        problem = "there is no such folder"
        if folder.exists():
            problem = f"is neither a data set nor a model ({error})"
        raise DataError(
            f"{folder}: {problem}; give one that was made with the same windows as the spec's."
        ) from None

    def read(name: str) -> bytes:
        if name not in sums:
            raise DataError(
                f"{folder}: it has fewer windows than the spec; give what was made with the same."
            )
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise DataError(f"{folder / name}: cannot be read ({error.strerror}); make it again.") from None
        if hashlib.sha256(content).hexdigest() != sums[name]:
            raise DataError(
                f"{folder / name}: torn or changed since it was written: its SHA-256 is not the manifest's;"
                f" make it again."
            )
        return content

    return read_windows(spec, read, str(folder))


def read_windows(spec: FeatureSpec, read: Callable[[str], bytes], where: str) -> Windows:
    """What was written for the windows of `spec`; `read` gives the content of a file by its name.

    Raises DataError, which begins with `where`, for files of other windows, and for torn ones.
    """
    windows = Windows(spec)
    for k, name in enumerate(window_files(spec)):
        content = read(name)
        try:
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            identity = header["__metadata__"]["window"]
            if identity != _identity(spec, k):
                raise DataError(
                    f"{where}: {name} is of another window than {spec.windows[k].name!r} of the spec; to go"
                    f" on from it, windows and seed of both must be the same."
                )
            windows.restore(k, load(content))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{where}: {name} cannot be read ({error}).") from error
    return windows


def identity_of(spec: FeatureSpec) -> str:
    """What must be the same for all windows of `spec` to go on from what others know: a JSON list."""
    return json.dumps([json.loads(_identity(spec, k)) for k in range(len(spec.windows))], sort_keys=True)


def difference(there: str, here: str) -> str:
    """What two that are not the same say differently."""
    before, now = json.loads(there), json.loads(here)
    if len(before) != len(now):
        return f"there are {len(before)} windows and here {len(now)}"
    return ", ".join(
        f"window {mine['name']!r}: {key} is {its.get(key)!r} there and {mine.get(key)!r} here"
        for its, mine in zip(before, now, strict=True)
        for key in mine
        if its.get(key) != mine[key]
    )


def _identity(spec: FeatureSpec, k: int) -> str:
    """What must be the same for a window to go on from another one's files."""
    window = spec.windows[k].model_dump(mode="json", exclude={"time", "rate_edges", "strength", "format"})
    return json.dumps({"seed": spec.seed, **window}, sort_keys=True)

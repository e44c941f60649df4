"""Puts compiled kernels into a wheel: `python docker/compiled_wheel.py build/ctr-*.whl dist`.

They are those that `ctr warm-up` has compiled in this checkout, for x86 processors since 2013. The new wheel
is for this version of Python; with another version of Numba, its kernels are compiled as without it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from ctr.jit import kernel_digest

PYTHON = f"cp{sys.version_info[0]}{sys.version_info[1]}"
TAG = f"{PYTHON}-{PYTHON}-{sysconfig.get_platform().replace('-', '_')}"


def main(wheel: Path, to: Path) -> None:
    """Write the wheel with kernels to a folder."""
    tool = [sys.executable, "-m", "wheel"]
    to.mkdir(exist_ok=True)
    if platform.machine() != "x86_64":
        shutil.copy(wheel, to)
        return
    with tempfile.TemporaryDirectory() as unpacked:
        subprocess.run([*tool, "unpack", wheel, "--dest", unpacked], check=True, stdout=subprocess.DEVNULL)
        (content,) = Path(unpacked).iterdir()
        compiled = [path for path in kernels(Path("ctr")) if (content / path).parents[2].is_dir()]
        if not compiled:
            sys.exit("no kernels are compiled in this checkout: run `ctr warm-up` first")
        for path in compiled:
            (content / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, content / path)
        (about,) = content.glob("*.dist-info/WHEEL")
        text = about.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        about.write_text(text.replace("Tag: py3-none-any", f"Tag: {TAG}"))
        subprocess.run([*tool, "pack", content, "--dest-dir", to], check=True, stdout=subprocess.DEVNULL)


def kernels(package: Path) -> list[Path]:
    """The files of kernels that were compiled from the sources as they are now."""
    folder = f"kernels-{kernel_digest()}"
    return [
        Path(parent, name)
        for parent, _, names in os.walk(package, followlinks=True)
        if parent.endswith(f"__pycache__/{folder}")
        for name in names
        if name.endswith((".nbi", ".nbc"))
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

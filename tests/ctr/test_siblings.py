"""Packages with common names beside other folders of those names, and what importing ours loads."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("name", ["features", "ps"])
@pytest.mark.parametrize("place", ["{}/__init__.py", "{}.py"])
def test_a_package_of_the_same_name_is_named(tmp_path: Path, name: str, place: str) -> None:
    theirs = tmp_path / place.format(name)
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("Chunk = None\n")
    for code in ("import ctr", f"import {name}; import ctr.jobs.train"):
        done = python("-c", code, cwd=tmp_path)
        assert done.returncode == 1
        said = done.stderr.splitlines()[-1]
        assert said.startswith(f"ImportError: ctr needs its own package '{name}' in {ROOT}")
        assert str(theirs) in said
        assert "rename that" in said


def test_a_folder_that_is_no_package_of_the_same_name_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "features").mkdir()
    (tmp_path / "ps").mkdir()
    (tmp_path / "api").mkdir()
    code = """
from importlib.util import find_spec
import ctr, features, ps
print(features.__file__, ps.__file__, find_spec("api").origin)
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{ROOT}/{name}/__init__.py" for name in ("features", "ps", "api")]


def test_python_m_ctr_does_not_look_into_the_current_folder(tmp_path: Path) -> None:
    for name in ("features", "ps", "api"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    (tmp_path / "clicks.csv").write_text("no,such\n1,2\n")
    done = python("-m", "ctr", "features", "build", "--spec", "x", "clicks.csv", "--out", "o", cwd=tmp_path)
    assert "not ours" not in done.stderr
    assert "x" in done.stderr
    assert done.returncode == 2
    assert python("-m", "ctr", "--version", cwd=ROOT).returncode == 0


def test_an_api_of_the_users_own_is_in_the_way_of_serving_alone(tmp_path: Path) -> None:
    (tmp_path / "api.py").write_text("")
    code = "import sys; sys.argv[1:] = ['serve', '--model', 'm']; from ctr.cli.app import main; main()"
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 1
    assert str(tmp_path / "api.py") in done.stderr.replace("\n", "")
    assert "Traceback" not in done.stderr


def test_importing_ctr_loads_nothing_large(tmp_path: Path) -> None:
    code = "import sys, ctr, ctr.errors; print({'redis', 'pyarrow', 'numpy', 'numba'} & set(sys.modules))"
    assert python("-c", code, cwd=tmp_path).stdout == "set()\n"


def test_building_and_training_in_memory_load_neither_redis_nor_scipy_nor_pandas_nor_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec.yaml").write_text(
        "version: 1\nsource: {format: delimited, delimiter: ',', header: true}\nlabel: click\nbits: 8\n"
        "fields: [{name: site, type: category}]\n"
    )
    (tmp_path / "log.csv").write_text("click,site\n" + "1,a\n0,b\n" * 300)
    train = """
from pathlib import Path
from ctr.jobs import TrainJob, run_train_job
from features import RawSource, load_spec, write_dataset
spec = load_spec("spec.yaml")
write_dataset(RawSource(spec, ["log.csv"]).batches(1000), spec, "hashed")
run_train_job(TrainJob(inputs=[Path("hashed")], spec=None, model=Path("model"), workers=2))
run_train_job(TrainJob(inputs=[Path("log.csv")], spec="spec.yaml", model=Path("model"), workers=2))
"""
    with monkeypatch.context() as here:
        here.chdir(tmp_path)
        exec(train, {})  # compiles the kernels, if nobody has
    code = f"""
import sys
{train}
heavy = "redis scipy.linalg pandas numba.np.arrayobj rich ctr.distributed.coordinator ps.board".split()
print(sorted(m for m in sys.modules if m.startswith(tuple(heavy))))
from numba.core import entrypoints
from numba.core.runtime.nrt import rtsys
print(rtsys._init, entrypoints._already_initialized)
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout.split() == ["[]", "False", "False"], done.stderr
    assert (tmp_path / "model").is_dir()


def test_a_lazy_face_has_no_other_names() -> None:
    import ps

    with pytest.raises(AttributeError, match="no attribute 'Sotre'"):
        _ = ps.Sotre  # type: ignore[attr-defined]


def test_completion_offers_the_python_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctr

    tree = ast.parse(Path(ctr.__file__).read_text())
    (face,) = (node for node in tree.body if isinstance(node, ast.If))
    names = {alias.name for node in face.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(dir(ctr)) == {*names, "__version__"}
    assert all(getattr(ctr, name) for name in dir(ctr))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert "FTRLClassifier" not in dir(ctr)


@pytest.mark.parametrize("package", ["api", "ctr", "features", "ps"])
def test_types_are_shipped(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()

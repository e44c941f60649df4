"""What importing ctr loads, also beside packages of the user with the names of ours."""

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


def test_packages_of_the_user_with_the_same_names_do_no_harm(tmp_path: Path) -> None:
    for name in ("features", "ps", "api"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    code = "import ctr.api, ctr.features, ctr.ps, ctr.jobs.training.job; print(ctr.features.__file__)"
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout.strip() == f"{ROOT}/ctr/features/__init__.py", done.stderr
    assert python("-m", "ctr", "serve", "--help", cwd=tmp_path).returncode == 0


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
from ctr.jobs import run_train_job
from ctr.settings import TrainJob
from ctr.features import RawSource, load_spec, write_dataset
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
heavy = "redis scipy.linalg pandas numba.np.arrayobj rich ctr.distributed.coordinator ctr.ps.board".split()
print(sorted(m for m in sys.modules if m.startswith(tuple(heavy))))
from numba.core import entrypoints
from numba.core.runtime.nrt import rtsys
print(rtsys._init, entrypoints._already_initialized)
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout.split() == ["[]", "False", "False"], done.stderr
    assert (tmp_path / "model").is_dir()


def test_a_lazy_package_has_no_other_names() -> None:
    import ctr.ps

    with pytest.raises(AttributeError, match="no attribute 'Sotre'"):
        _ = ctr.ps.Sotre  # type: ignore[attr-defined]


def test_completion_offers_the_python_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctr

    tree = ast.parse(Path(ctr.__file__).read_text())
    (public,) = (node for node in tree.body if isinstance(node, ast.If))
    names = {alias.name for node in public.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(dir(ctr)) == {*names, "__version__"}
    assert all(getattr(ctr, name) for name in dir(ctr))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert "FTRLClassifier" not in dir(ctr)


def test_types_are_shipped() -> None:
    assert (ROOT / "ctr" / "py.typed").exists()

"""Try a wheel as its users get it: `python tests/wheel.py dist/ctr-*.whl`.

It is installed into an environment of its own, away from this folder; what it depends on is taken from the
environment that runs this. Then a model is trained, evaluated and asked over HTTP, in a folder that has
packages `features`, `ps` and `api` of its own, as many projects have.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
import venv
from pathlib import Path

OWN = ("features", "ps", "api")
SHIPPED = """
import sys
from importlib.metadata import files, version
from importlib.util import find_spec
from pathlib import Path
ours = Path(find_spec("ctr").origin).parent
assert ours.is_relative_to(sys.prefix), ours
for name in ("py.typed", "pages/report.html.jinja", "api/page/script.js", "ps/opening.py"):
    assert (ours / name).exists(), name
tops = {path.parts[0] for path in files("ctr")}
assert tops == {"ctr", "..", f"ctr-{version('ctr')}.dist-info"}, tops
import ctr, features, ps, api
assert {each.__file__ for each in (features, ps, api)} == {str(Path(n, "__init__.py").resolve()) for n in OWN}
"""


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        away = Path(folder)
        venv.create(away / "env")
        python, ctr = away / "env" / "bin" / "python", away / "env" / "bin" / "ctr"

        def run(*words: object) -> str:
            pipe, command = subprocess.PIPE, [*map(str, words)]
            done = subprocess.run(command, cwd=away, check=True, stdout=pipe, stderr=pipe, text=True)
            if not wheel.name.endswith("-any.whl"):
                assert "compiling kernels" not in done.stderr, f"{command}: {done.stderr}"
            return done.stdout

        pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
        run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel.resolve())
        (site,) = (away / "env").glob("lib/python*/site-packages")
        # Only the folder: the links to checkouts in it, such as an editable ctr, are not followed from here.
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for name in OWN:
            (away / name).mkdir()
            (away / name / "__init__.py").write_text("WHOSE = 'the user'\n")
        run(python, "-c", SHIPPED.replace("OWN", repr(OWN)))
        run(*pip, "check")

        print(run(ctr, "--version").strip(), "from", wheel)
        run(python, "-m", "ctr", "--help")
        run(ctr, "synth", "--rows", 2_000, "--out", "clicks.tsv")
        for spec in ("criteo", "avazu", "libsvm", "vw"):
            run(python, "-c", f"from ctr.features import load_spec; load_spec({spec!r})")
        run(ctr, "train", "--spec", "criteo", "clicks.tsv", "--model", "model")
        run(ctr, "evaluate", "clicks.tsv", "--model", "model")
        with subprocess.Popen(
            [ctr, "serve", "--model", "model", "--port", "0"], cwd=away, stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                url = server.stdout.readline().split()[-1]
                body = json.dumps({"rows": [{"I1": 5, "C1": "68fd1e64"}]}).encode()
                headers = {"content-type": "application/json"}
                request = urllib.request.Request(f"{url}/v1/predict", body, headers)
                with urllib.request.urlopen(request, timeout=30) as response:
                    print("a prediction:", json.load(response)["predictions"])
            finally:
                server.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

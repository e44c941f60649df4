"""Any bytes are rows or a DataError, and any text is a spec or a SpecError: no parser stumbles, or hangs.

Bytes near real ones come further than random ones. With `NUMBA_BOUNDSCHECK=1` (`make kernels`, `make fuzz`)
no kernel reads or writes beside its arrays.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.errors import DataError, SpecError
from ctr.features import SKIP, Batch, FeatureSpec, Transform, fit, load_spec, parse_spec
from ctr.features.block import Reader, blocks_of
from ctr.features.inputs import LocalFile
from ctr.features.lines.delimited import DelimitedReader
from ctr.features.lines.json_lines import JsonLinesReader
from ctr.features.lines.line_reader import LibsvmReader, VwReader
from ctr.features.raw import RawSource

pytestmark = [pytest.mark.kernel, pytest.mark.large]

SECONDS = 5.0
"""Of processor time for some kilobytes: a hundred times what they need."""

_FIELDS = """
fields:
  - {name: c, type: category, missing: feature}
  - {name: n, type: number, transform: log}
  - {name: w, column: n, type: number, transform: width, width: 0.5, steps: [{clip: [-9, 1.0e+9]}, sqrt]}
  - {name: tags, type: list, delimiter: "|", counts: true}
  - {name: title, type: text, words: [1, 2], chars: [3], most: 9}
crosses: [c * n, c * tags]
"""


def spec_of(source: str) -> FeatureSpec:
    return parse_spec(f"version: 1\nsource: {source}\nlabel: y\nbits: 16\n{_FIELDS}", "fuzz")


CSV = spec_of("{format: delimited}")
QUOTED = spec_of("{format: delimited, quote: true}")
BARE = spec_of('{format: delimited, header: false, columns: [y, c, n, tags, title], delimiter: "\\t"}')
JSON = spec_of("{format: jsonl}")
LIBSVM = load_spec("libsvm")
VW = parse_spec("{version: 1, source: {format: vw}}", "fuzz")

_ROWS = [
    ("1", "a", "17", "x:2|y|x", "Red shoes"),
    ("0", "", "0.5", "", "été, \u0130stanbul \U0001f600"),
    ("0", "b\u00e9", "-3", "z:0.25", ""),
    ("1", "c", "", "|:|", "a_b  c"),
]
_CSV_TEXT = "y,c,n,tags,title\n" + "".join(
    ",".join(cell.replace(",", ";") for cell in row) + "\n" for row in _ROWS
)
_QUOTED_TEXT = 'y,c,n,tags,"title"\n' + "".join(
    ",".join(f'"{cell}"' for cell in row) + "\r\n" for row in [*_ROWS, ("0", 'say ""so""', "1", "a\nb", ",")]
)
_BARE_TEXT = "".join("\t".join(row) + "\n" for row in _ROWS)
_JSON_TEXT = r"""
{"y": 1, "c": "a", "n": 17, "tags": ["x", "y", null, 2.5], "title": "Red \"shoes\" \u00e9\ud83d\ude00"}
{"c": null, "n": -0.5e-3, "y": 0, "more": {"deep": [[], {"y": [1]}]}, "tags": "a|b:2", "title": ""}
{"y": false, "n": 1E+30, "c": true, "tags": [], "title": "été"}
"""
_LIBSVM_TEXT = "1 3:0.5 17:1 4294967295:2e-3 # a comment\n-1 1:1\n+1\n0 65535:-7 5:.5 qid:3\n"
_VW_TEXT = "1 2.0 'a-tag|user age:32 male |site:0.5 a b:2 c\n-1 |a b\n0 1 tag| x y:1e3 x:-.5\n| z\n"

SEEDS: dict[str, tuple[FeatureSpec, str]] = {
    "csv": (CSV, _CSV_TEXT),
    "quoted": (QUOTED, _QUOTED_TEXT),
    "bare": (BARE, _BARE_TEXT),
    "json": (JSON, _JSON_TEXT),
    "libsvm": (LIBSVM, _LIBSVM_TEXT),
    "vw": (VW, _VW_TEXT),
}
_TOKENS = [
    *(bytes([byte]) for byte in b"\t\n\r \"',:;|[]{}\\/#-+.eE0189aNu_\x00\x1f\x7f\x80\xc3\xe2\xff"),
    *(b"\r\n", b'""', b'",', b"\\u12", b"\\ud83d", b"\\n", b"nan", b"null", b"inf", b"1e999", b"-0", b"0x1"),
    *(b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80", b"\xc4\xb0", b"\xff\xfe", b"18446744073709551616", b"9" * 400),
    *(
        b"[" * 300,
        b'{"y":' * 100,
        b"a" * 3000,
        b"," * 500,
        b"\n" * 300,
        b"1:1 " * 700,
        b'"' * 301,
        b"|b" * 900,
    ),
    *(b"\x1f\x8b\x08", b"PAR1", b"ARROW1", b"PK\x03\x04", b"BZh9", b"\x28\xb5\x2f\xfd", b"<html>"),
]


@st.composite
def near(draw: st.DrawFn, seed: bytes) -> bytes:
    """`seed` with some of its bytes cut, repeated or replaced."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        stop = min(start + draw(st.sampled_from([0, 0, 1, 1, 2, 8, 40, 400])), len(data))
        piece = draw(
            st.one_of(st.sampled_from(_TOKENS), st.binary(max_size=6), st.just(bytes(data[start:stop]) * 2))
        )
        data[start:stop] = piece
    return bytes(data)


def bytes_near(seed: str) -> st.SearchStrategy[bytes]:
    return st.one_of(near(seed.encode()), near(seed.encode()), near(seed.encode()), st.binary(max_size=200))


@contextmanager
def in_time() -> Iterator[None]:
    begun = time.process_time()
    yield
    assert time.process_time() - begun < SECONDS


def check(batch: Batch, spec: FeatureSpec) -> None:
    """What every batch promises."""
    assert batch.indptr[0] == 0
    assert (np.diff(batch.indptr) >= int(spec.bias)).all()
    assert batch.indptr[-1] == batch.slots.size
    assert (batch.slots < 1 << spec.bits).all()
    if batch.values is not None:
        assert batch.values.size == batch.slots.size
        assert np.isfinite(batch.values).all()
    if batch.labels is not None:
        assert np.isin(batch.labels, (0, 1)).all()


def parse(spec: FeatureSpec, path: Path) -> None:
    """All rows of the file, in every way that commands read them."""
    with suppress(DataError, SpecError):
        source = RawSource(fit(spec, [path]), [path], on_bad_rows=SKIP)
        good = 0
        for batch in source.batches(7):
            check(batch, spec)
            good += len(batch)
        assert source.count_rows() == good + source.bad_rows.count
        assert all(isinstance(line, str) for line in source.bad_rows.examples)
        again = list(RawSource(spec, [path], on_bad_rows=SKIP, threads=2).batches(10_000))
        assert sum(map(len, again)) == good
    with suppress(DataError, SpecError):
        unlabelled = RawSource(spec, [path], labels="ignored")
        unlabelled.warnings()
        for batch in unlabelled.batches(7):
            check(batch, spec)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With every kernel in memory, so that the time of an example is that of its bytes."""
    folder = tmp_path_factory.mktemp("fuzz")
    for name, (spec, text) in SEEDS.items():
        (folder / name).write_text(text)
        parse(spec, folder / name)
    return folder


def _fuzz(name: str) -> Callable[..., None]:
    spec, seed = SEEDS[name]

    @settings(max_examples=60)
    @given(data=bytes_near(seed))
    def run(folder: Path, data: bytes) -> None:
        path = folder / f"{name}.now"
        path.write_bytes(data)
        with in_time():
            parse(spec, path)

    return run


test_delimited_text = _fuzz("csv")
test_delimited_text_in_quotes = _fuzz("quoted")
test_delimited_text_without_header = _fuzz("bare")
test_json_lines = _fuzz("json")
test_libsvm = _fuzz("libsvm")
test_vw_text = _fuzz("vw")


_READERS: dict[str, Callable[[LocalFile, FeatureSpec, int], Reader]] = {
    "csv": lambda path, spec, size: DelimitedReader(path, spec, read_bytes=size),
    "quoted": lambda path, spec, size: DelimitedReader(path, spec, read_bytes=size),
    "json": lambda path, spec, size: JsonLinesReader(path, spec, read_bytes=size),
    "libsvm": lambda path, spec, size: LibsvmReader(path, read_bytes=size),
    "vw": lambda path, spec, size: VwReader(path, read_bytes=size),
}


def _cells(name: str, path: Path, read_bytes: int) -> list[tuple[str, int, list[bytes]]] | str:
    """Place, status and cells of every row, or the error."""
    spec = SEEDS[name][0]
    columns = Transform(spec, with_label=True).columns
    rows: list[tuple[str, int, list[bytes]]] = []
    try:
        with closing(_READERS[name](LocalFile(path), spec, read_bytes)) as reader:
            for block in blocks_of(reader, columns):
                starts, ends, buffer = block.cells.starts, block.cells.ends, block.cells.buffer
                for i, status in enumerate(block.status.tolist()):
                    cells = (
                        []
                        if status
                        else [buffer[a:b].tobytes() for a, b in zip(starts[i], ends[i], strict=True)]
                    )
                    rows.append((block.origin.place(i), status, cells))
    except DataError as error:
        return str(error)
    return rows


@pytest.mark.parametrize("name", list(_READERS))
def test_where_the_buffer_ends_makes_no_difference(folder: Path, name: str) -> None:
    @settings(max_examples=30)
    @given(data=near(SEEDS[name][1].encode()), read_bytes=st.sampled_from([16, 33, 256]))
    def run(data: bytes, read_bytes: int) -> None:
        path = folder / "cut.now"
        path.write_bytes(data)
        whole, cut = _cells(name, path, 1 << 20), _cells(name, path, read_bytes)
        if not isinstance(whole, str):  # what kind of file it is, its first bytes tell
            assert isinstance(cut, str) or cut == whole

    run()


def _lz4(data: bytes) -> bytes:
    with pa.BufferOutputStream() as sink, pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
    "lz4": _lz4,
}


@pytest.mark.parametrize("suffix", list(_COMPRESS))
def test_compressed_text(folder: Path, suffix: str) -> None:
    @settings(max_examples=25)
    @given(data=near(_COMPRESS[suffix](_CSV_TEXT.encode() * 3)))
    def run(data: bytes) -> None:
        path = folder / f"text.csv.{suffix}"
        path.write_bytes(data)
        with in_time():
            parse(CSV, path)

    run()


def _spec_texts() -> Sequence[str]:
    docs = (Path(__file__).parents[2] / "docs" / "features.md").read_text("utf-8")
    parts = re.findall(r"^```yaml\n(.*?)^```", docs, re.MULTILINE | re.DOTALL)
    head = "version: 1\nsource: {format: delimited}\nlabel: click\n"
    texts = [head + ("fields:\n" + part if part.lstrip().startswith("-") else part) for part in parts]
    return [*texts, *(load_spec(name).to_yaml() for name in ("avazu", "libsvm")), BARE.to_yaml()]


_YAML = [
    *(
        "&a",
        "*a",
        "!!python/object:os.system",
        "!!binary",
        "<<: *a",
        "? ",
        "- ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        "'",
        '"',
    ),
    *(
        "\t",
        "\n",
        "\n  ",
        "#",
        "|",
        ">",
        "%YAML 9",
        "---\n",
        "...",
        "~",
        "null",
        "yes",
        "1e999",
        "-1",
        ".nan",
        ".inf",
    ),
    *(
        "9" * 5000,
        "0x_",
        "1:2:3",
        "2001-99-99",
        "\x00",
        "\ud800",
        "\ufeff",
        "\U0001f600",
        "[" * 400,
        "{a: " * 300,
    ),
    *(
        " * ",
        "* * *",
        '"* * * * * * *"',
        "steps: [log, log]",
        "{clip: [9, 1]}",
        "missing: {value: x}",
        "type: text",
    ),
    *(
        "bits: 41",
        "edges: []",
        "most_features: 1",
        "delimiter: ab",
        "format: parquet",
        "vocabulary: /",
        "seed: -1",
    ),
]


@st.composite
def specs(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(_spec_texts()))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        stop = min(start + draw(st.sampled_from([0, 0, 1, 3, 12, 60])), len(text))
        piece = draw(st.one_of(st.sampled_from(_YAML), st.text(max_size=4), st.just(text[start:stop] * 2)))
        text = text[:start] + piece + text[stop:]
    return text


_BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" for i in range(1, 12))


@settings(max_examples=25)
@given(text=specs())
@example(text=_BOMB)
@example(text="[" * 100_000)
@example(text="fields: &a [*a]")
@example(text="version: 1\nsource: &s {format: *s}\n")
def test_specs(text: str) -> None:
    with in_time(), suppress(SpecError):
        spec = parse_spec(text, "fuzz")
        assert parse_spec(spec.to_yaml(), "again").fingerprint == spec.fingerprint
        Transform(spec, with_label=True)


@settings(max_examples=25)
@given(data=near(BARE.to_yaml().encode()))
def test_files_of_specs(folder: Path, data: bytes) -> None:
    (folder / "spec.yaml").write_bytes(data)
    with suppress(SpecError):
        load_spec(folder / "spec.yaml")


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from(["c", "n", "tags", "title", "y", "x"]), _VALUES, max_size=5),
        max_size=3,
    )
)
def test_rows_sent_for_scoring(folder: Path, rows: list[dict[str, Any]]) -> None:
    with suppress(DataError):
        check(Transform(CSV, with_label=False).apply_rows(rows), CSV)

"""JSON bodies: the scanner beside the parser, which is the reference."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ctr.api.requests.body import Limits, RequestError
from ctr.api.requests.json_rows import JsonRows
from ctr.errors import DataError
from ctr.features import Transform, parse_spec
from ctr.features.lines import JsonRequests, RequestRows

pytestmark = [pytest.mark.kernel, pytest.mark.hypothesis]

SPEC = """
version: 1
source: {format: jsonl, ignore: [other]}
label: click
bits: 16
fields:
  - {name: age, type: number, transform: log}
  - {name: price, type: number, transform: linear}
  - {name: city, type: category}
  - {name: straße, type: category}
  - {name: tags, type: list}
"""
NAMES = ("age", "price", "city", "straße", "tags", "other", "click")
TRANSFORM = Transform(parse_spec(SPEC, "the test"), with_label=False)
LIMITS = Limits(rows=4)

NUMBERS = st.sampled_from(
    [
        *(
            "0",
            "-0",
            "-0.0",
            "1",
            "1.0",
            "1.50",
            "-7",
            "0.1234567890123456",
            "1e5",
            "1E-7",
            "123456789012345678",
        ),
        *(
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775809",
            "0.00001",
            "1e999",
            "01",
            "1.",
        ),
        *("9007199254740993", "1234567890.1234567", "12345678901234567890123", "+1", "-", "NaN", "Infinity"),
    ]
) | st.floats(allow_nan=False, allow_infinity=False).map(repr)
TEXTS = st.sampled_from(
    [
        '""',
        '"a"',
        '"\u00e9"',
        r'"\u00e9\n"',
        r'"\ud83d\ude00"',
        r'"\ud800"',
        r'"\x"',
        '"\t"',
        '"\n"',
        '"a\x1fb"',
        '"1.5"',
        '"\x7f"',
        '"\\"',
        "'a'",
        '"x',
        r'"\u001f"',
        r'"\""',
    ]
)
SINGLE = NUMBERS | TEXTS | st.sampled_from(["null", "true", "false", "nul", "{}", "[[]]", '{"a": 1}'])
SPACE = st.sampled_from(["", "", "", "", " ", "\n", "\r\n\t", "\v", "\u00a0", "\0"])


def joined(parts: list[str], space: str, first: str, last: str) -> str:
    return f"{space}{first}{space}{f'{space},{space}'.join(parts)}{space}{last}{space}"


VALUES = st.one_of(
    SINGLE,
    st.builds(lambda parts, space: joined(parts, space, "[", "]"), st.lists(SINGLE, max_size=3), SPACE),
)
KEYS = st.sampled_from([*map(orjson.dumps, NAMES), rb'"\u0061ge"', b'"unknown"', b'"ag"', b'"ages"', b"age"])


def members(values: st.SearchStrategy[str], most: int = 4) -> st.SearchStrategy[str]:
    pair = st.builds(lambda key, value, space: f"{key.decode()}{space}:{space}{value}", KEYS, values, SPACE)
    return st.builds(
        lambda parts, space: joined(parts, space, "{", "}"), st.lists(pair, max_size=most), SPACE
    )


ROWS = st.builds(
    lambda rows, space: joined(rows, space, "[", "]"), st.lists(members(VALUES), max_size=5), SPACE
)
LISTS = st.builds(lambda parts, space: joined(parts, space, "[", "]"), st.lists(VALUES, max_size=3), SPACE)
SOUND = st.fixed_dictionaries(
    {},
    optional={
        "age": st.none() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False),
        "city": st.none() | st.text(max_size=3) | st.integers(0, 2**64),
        "straße": st.booleans() | st.text(max_size=10),
        "tags": st.lists(st.text(max_size=3) | st.integers(0, 9), max_size=3),
        "other": st.text(max_size=3),
    },
)
REQUESTS = st.one_of(
    st.builds('{{"rows":{}}}'.format, ROWS),
    st.builds('{{"columns":{}}}'.format, members(LISTS, 3)),
    st.builds('{{"context":{},"candidates":{}}}'.format, members(VALUES), ROWS),
    st.builds('{{"candidates":{},"context":{}}}'.format, ROWS, members(VALUES)),
    st.builds('{{"rows":{},"rows":{}}}'.format, ROWS, ROWS),
    st.builds(lambda rows: json.dumps({"rows": rows}, indent=1), st.lists(SOUND, max_size=4)),
    st.builds(lambda rows: orjson.dumps({"rows": rows}).decode(), st.lists(SOUND, max_size=4)),
)
BODIES = st.one_of(
    REQUESTS.map(lambda text: text.encode("utf-8", "replace")),
    st.builds(
        lambda text, at, more: text[: at % (len(text) + 1)] + more + text[at % (len(text) + 1) :],
        REQUESTS.map(lambda text: text.encode("utf-8", "replace")),
        st.integers(0, 500),
        st.sampled_from(
            [b"\xff", b"}", b"]", b'"', b",", b"\\", b"{", b"x", b"\xc3", b"\xed\xa0\x80", b"\n"]
        ),
    ),
    st.builds(lambda text, at: text.encode()[:at], REQUESTS, st.integers(0, 200)),
    st.binary(max_size=50),
)


def texts_of(rows: RequestRows) -> list[list[bytes]]:
    cells = rows.cells
    return [
        [cells.buffer[start:end].tobytes() for start, end in zip(*places, strict=True)]
        for places in zip(cells.starts.tolist(), cells.ends.tolist(), strict=True)
    ]


def outcome(read: Any, body: bytes) -> object:
    try:
        return texts_of(read(body))
    except (RequestError, DataError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("unknown", ["refuse", "ignore"])
@given(body=BODIES)
@example(b'{"rows":[{"age":-0.0,"city":1.0,"other":1.50}]}')
@example(b'{"rows":[{}]}\0')
@example(b'{"columns":{"age":[],"city":[]}}')
@example(b'{"columns":{}}')
@example(b'{"context":{},"candidates":[]}')
@example(b'{"rows":[{},{},{},{},{}]}')
@example(b'{"rows":[{"age":1,"age":"a"}]}')
def test_any_body_has_the_rows_or_the_error_of_the_parser(unknown: Any, body: bytes) -> None:
    rows = JsonRows(TRANSFORM, LIMITS, unknown)
    assert outcome(rows.read, body) == outcome(rows.parse, body)


@given(st.lists(SOUND, min_size=1, max_size=4), SOUND, st.sampled_from([None, 1]))
def test_sound_requests_need_no_parser(
    rows: list[dict[str, Any]], context: dict[str, Any], indent: int | None
) -> None:
    """As compact as orjson writes them, or as Python's json module does, with escapes and line ends."""
    scanner = JsonRequests(TRANSFORM)
    columns = {name: [row.get(name) for row in rows] for name in ("age", "city", "tags")}
    forms: list[tuple[Any, list[dict[str, Any]]]] = [
        ({"rows": rows}, rows),
        ({"columns": columns}, [{name: row.get(name) for name in columns} for row in rows]),
        ({"context": context, "candidates": rows}, [context | row for row in rows]),
    ]
    for request, expected in forms:
        body = json.dumps(request, indent=indent).encode()
        try:
            cells = TRANSFORM.cells_of([orjson.loads(orjson.dumps(r)) for r in expected])
        except (DataError, TypeError):  # numbers of more than 64 bits
            continue
        found = scanner.read(body, 4)
        assert found is not None
        assert texts_of(found) == texts_of(RequestRows(cells))


def test_values_of_unknown_fields_are_counted() -> None:
    rows = JsonRows(TRANSFORM, LIMITS, "count")
    for body in (
        b'{"rows": [{"age": 1, "a": 1}, {"b": [1, 2], "c": null}]}',
        b'{"rows": [{"age": 1, "a": {}}, {"b": [[1], 2], "c": null}]}',
    ):
        assert rows.read(body).unknown == 3
        assert texts_of(rows.read(body))[0][0] == b"1"
    assert rows.read(b'{"columns": {"a": [1, 2], "age": [3, 4]}}').unknown == 2

"""Fields of times: texts and zones against Python's datetime and zoneinfo, and what they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ctr.errors import DataError, SpecError
from ctr.features import SKIP, RawSource, Transform, parse_spec
from ctr.features.columns import Column
from ctr.features.spec import FeatureSpec, TimeField
from ctr.features.steps.times import buckets_of_times, zone_of
from ctr.features.text import Times, hash_bytes, times_of
from tests.reference import times as reference

ZONES = ["Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe", "Africa/Casablanca"]
ZONES += ["America/St_Johns", "Asia/Kathmandu", "Pacific/Apia", "Asia/Tehran", "Europe/Dublin"]
FORMATS = [
    "%Y-%m-%d %H:%M:%S",
    "%y%m%d%H",
    "%Y%m%d%H%M%S%f",
    "%d/%b/%Y:%H:%M:%S %z",
    "%m/%d/%Y",
    "%d.%m.%y %H",
]
FORMATS += ["%Y-%m-%dT%H:%M:%S.%f%z", "%H:%M", "100%% %Y%b%d", "unix", "unix_ms"]
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
CENTURY_US = st.integers(0, 2_871_763_199 * 10**6)  # 1970 to 2060
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parsed(texts: Sequence[str], time_format: str | None) -> Times:
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded]).astype(np.int32)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int32)
    buffer = np.frombuffer(b"".join(encoded) or b" ", np.uint8)
    return times_of((buffer, starts, ends, np.zeros(len(texts), np.uint8)), time_format)


def assert_as_reference(texts: Sequence[str], time_format: str | None) -> None:
    found = parsed(texts, time_format)
    for text, value, present, problem in zip(texts, *found, strict=True):
        try:
            expected = reference.micros(text, time_format)
        except (ValueError, OverflowError):
            assert (present, bool(problem)) == (False, True), text
        else:
            assert (present, problem) == (expected is not None, 0), text
            assert not present or value == expected, text


@st.composite
def iso_texts(draw: st.DrawFn) -> str:
    moment = draw(MOMENTS)
    offset = timezone(timedelta(minutes=draw(st.integers(-23 * 60, 23 * 60))))
    moment = draw(st.sampled_from([moment, moment.replace(microsecond=0), moment.replace(tzinfo=offset)]))
    text = draw(
        st.sampled_from([str(moment), moment.isoformat(), str(moment.date()), moment.isoformat()[:16]])
    )
    return draw(
        st.sampled_from([text, text + "Z", f" {text}\t", text + ".123456789", text[:-1], text + "+0530"])
    )


@pytest.mark.kernel
@settings(max_examples=150, deadline=None)
@given(text=iso_texts(), other=st.text("0123456789-:T.+Z nat", max_size=26))
def test_iso_8601(text: str, other: str) -> None:
    assert_as_reference([text, other], None)


ODD = [
    "",
    "nan",
    "NaT",
    " ",
    "2017-02-29",
    "2016-02-29",
    "1900-02-29",
    "2000-02-29",
    "0000-01-01",
    "2017-13-01",
]
ODD += [
    "2017-00-10",
    "2017-1-1",
    "2017-01-01T24:00",
    "2017-01-01T23:60",
    "2017-01-01 00:00:60",
    "2017-01-01 ",
]
ODD += [
    "2017-01-01T5",
    "2017-01-01 05",
    "2017-01-01T05:00.5",
    "2017-01-01T05:00:00,5",
    "2017-01-01T05:00:00.",
]
ODD += ["2017-01-01T05:00+1", "2017-01-01T05:00+01:", "2017-01-01T05:00+01:6", "2017-01-01T05:00-01:00:01"]
ODD += ["2017-01-01T05:00+24", "2017-01-01T05:00+0160", "2017-01-01T05:00+01:0030", "2017-01-01T05:00-010030"]
ODD += ["2017-01-01Z", "2017-01-01T05Z", "\uff19017-01-01", "-2017-01-01", "2017-01-01T05:00 Z", "14102100"]


@pytest.mark.kernel
def test_odd_texts() -> None:
    assert_as_reference(ODD, None)
    for time_format in FORMATS[:-2]:
        assert_as_reference(
            [*ODD, "9102100", "1410210", "141021000", "%", "1/2/2017", "100% 2017Feb3"], time_format
        )


@pytest.mark.kernel
@settings(max_examples=150, deadline=None)
@given(
    moment=MOMENTS,
    minutes=st.integers(-23 * 60, 23 * 60),
    time_format=st.sampled_from(FORMATS[:-2]),
    cut=st.integers(-2, 2),
)
def test_formats(moment: datetime, minutes: int, time_format: str, cut: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    text = aware.strftime(time_format)
    assert_as_reference([text, text[:cut] if cut < 0 else text + "0" * cut, text.upper()], time_format)


@pytest.mark.kernel
@settings(max_examples=60, deadline=None)
@given(
    seconds=st.one_of(st.integers(-(10**13), 10**13), st.decimals(-(10**9), 2 * 10**9, places=3)),
    time_format=st.sampled_from(["unix", "unix_ms"]),
)
def test_unix_times(seconds: Any, time_format: str) -> None:
    assert_as_reference([str(seconds), f" {seconds}", "x", "nan", "1e300", "1.5e9"], time_format)


def bucket(field: TimeField, *micros: int) -> list[int]:
    texts = [str(EPOCH + timedelta(microseconds=value)) for value in micros]
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded]).astype(np.int32)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int32)
    column = Column(np.frombuffer(b"".join(encoded), np.uint8), starts, ends, np.zeros(len(texts), np.uint8))
    return buckets_of_times(field, column, 0, {}).buckets.view(np.int64).tolist()


def field_of(**keys: Any) -> TimeField:
    return TimeField.model_validate({"name": "t", "type": "time", **keys})


@pytest.mark.kernel
@settings(max_examples=150, deadline=None)
@given(
    micros=st.lists(CENTURY_US, min_size=1, max_size=8),
    zone=st.sampled_from([None, *ZONES]),
    transform=st.sampled_from(["hour", "weekday", "hour_of_week", "day"]),
    around=st.integers(0, 200),
)
def test_hours_and_days_are_those_of_zoneinfo(
    micros: list[int], zone: str | None, transform: str, around: int
) -> None:
    field = field_of(transform=transform, zone=zone)
    begins = zone_of(zone).begins[1:]
    change = int(begins[(begins >= 0) & (begins < 2_871_763_199)][-1 - around % 60 :][0]) if zone else 0
    moments = [*micros, *(change * 10**6 + step for step in (-1, 0, 1, 3_600 * 10**6))]
    moments = [abs(moment) for moment in moments]
    assert bucket(field, *moments) == [reference.bucket(field, moment) for moment in moments]


@pytest.mark.kernel
@settings(max_examples=40, deadline=None)
@given(micros=st.lists(MOMENTS, min_size=1, max_size=4))
def test_days_of_all_years(micros: list[datetime]) -> None:
    moments = [(moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) for moment in micros]
    for transform in ("weekday", "day"):
        field = field_of(transform=transform)
        assert bucket(field, *moments) == [reference.bucket(field, moment) for moment in moments]
    for more in ({}, {"edges": [-10, 0, 1, 365.5]}):
        field = field_of(transform="age_days", since="2017-11-06T12:00+02:00", **more)
        assert bucket(field, *moments) == [reference.bucket(field, moment) for moment in moments]


def spec_of(*fields: str, more: str = "") -> FeatureSpec:
    head = "version: 1, source: {format: delimited}, label: y, bits: 32, bias: false"
    return parse_spec(f"{{{head}, fields: [{', '.join(fields)}]{more}}}", "my.yaml")


def slot(name: str, value: int) -> int:
    return hash_bytes(value.to_bytes(8, "little", signed=True), hash_bytes(name.encode(), 0)) % 2**32 or 1


FIELDS = (
    "{name: h, column: t, type: time, transform: hour, zone: Europe/Berlin}",
    "{name: w, column: t, type: time, transform: hour_of_week, missing: feature}",
    "{name: a, column: t, type: time, transform: age_days, since_column: s}",
    '{name: d, column: u, type: time, transform: day, format: unix, missing: {value: "0"}}',
)


def test_the_same_features_from_every_kind_of_input(tmp_path: Path) -> None:
    spec = spec_of(*FIELDS, more=", crosses: [{name: hd, of: [h, d]}]")
    t = [datetime(2017, 7, 6, 22, 30), None, datetime(2017, 11, 6, 16, 0, 0, 500_000), datetime(2017, 11, 7)]
    s = [datetime(2017, 7, 1, 23), datetime(2017, 1, 1), None, datetime(2017, 11, 7, 0, 0, 1)]
    u = [1_510_000_000, 0.5, None, 1_510_617_600]
    path = tmp_path / "t.csv"
    text = [
        ",".join("" if v is None else str(v) for v in row) for row in zip([1, 0, 1, 0], t, s, u, strict=True)
    ]
    path.write_text("\n".join(["y,t,s,u", *text, ""]))
    columnar = tmp_path / "t.parquet"
    table = {"t": pa.array(t, pa.timestamp("us")), "s": pa.array(s, pa.timestamp("ns")), "u": pa.array(u)}
    table["s"] = table["s"].cast(pa.timestamp("ns", "UTC"))
    parquet.write_table(pa.table({"y": [1, 0, 1, 0], **table}), columnar)
    rows: list[dict[str, object]] = [
        {"t": a and a.isoformat() + "Z", "s": b and b.isoformat(" "), "u": c}
        for a, b, c in zip(t, s, u, strict=True)
    ]
    served = Transform(spec, with_label=False).apply_rows(rows)
    batches = [next(RawSource(spec, [file]).batches(9)) for file in (path, columnar)]
    for batch in batches:
        np.testing.assert_array_equal(batch.slots, served.slots)
        np.testing.assert_array_equal(batch.indptr, served.indptr)
    first = served.slots[: served.indptr[1]].tolist()
    assert first[:4] == [slot("h", 0), slot("w", 3 * 24 + 22), slot("a", 4), slot("d", 6)]
    assert np.diff(served.indptr).tolist() == [5, 2, 4, 5]
    assert slot("a", -1) in served.slots[served.indptr[3] :]
    assert slot("d", 1) in served.slots[served.indptr[2] : served.indptr[3]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "2017-13-01,,",
            r"t\.csv:2: column 't': '2017-13-01' is no time; expected 2017-11-06 16:00:00 or .*ISO",
        ),
        ("2017-11-01,yesterday,", r"column 's': 'yesterday' is no time; expected 2017-11-06 16:00:00"),
        (
            ",,1510000000000",
            r"column 'u': '1510000000000' is no time; expected .* seconds since 1970 \(format: un",
        ),
        (",,", None),
    ],
)
def test_what_is_no_time_is_a_bad_row(tmp_path: Path, row: str, message: str | None) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"y,t,s,u\n1,{row}\n")
    source = RawSource(spec_of(*FIELDS), [path])
    if message is None:
        assert len(next(source.batches(9))) == 1
        return
    with pytest.raises(DataError, match=message):
        list(source.batches(9))
    rows: list[dict[str, object]] = [dict(zip("tsu", row.split(","), strict=True))]
    with pytest.raises(DataError, match=message.removeprefix(r"t\.csv:2: ")):
        Transform(source.spec, with_label=False).apply_rows(rows)


def test_stamps_as_in_the_contest_of_avazu(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("y,t\n1,14102100\n0,14103023\n0,1410302\n")
    spec = spec_of("{name: t, type: time, transform: hour_of_week, format: '%y%m%d%H'}")
    (batch,) = RawSource(spec, [path], on_bad_rows=SKIP).batches(9)
    assert batch.slots.tolist() == [slot("t", 24), slot("t", 3 * 24 + 23)]
    source = RawSource(spec, [path])
    with pytest.raises(DataError, match=r"'1410302' is no time; expected a time of the format %y%m%d%H"):
        list(source.batches(9))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("month", r"fields\[0\]\.transform: expected 'hour', .* or 'age_days', got 'month'"),
        ("hour, zone: Europe/Bonn", r"fields\[0\]\.zone: there is no time zone 'Europe/Bonn'; write an IANA"),
        ("hour, zone: ../etc/passwd", r"fields\[0\]\.zone: there is no time zone"),
        ("hour, zone: Europe", r"fields\[0\]\.zone: there is no time zone"),
        ("hour, format: '%Y-%m-%d'", r"fields\[0\]\.format: '%Y-%m-%d' tells no hour; it lacks %H"),
        ("weekday, format: '%H:%M'", r"fields\[0\]\.format: '%H:%M' tells no day; it needs %Y or %y"),
        ("hour, format: '%H', zone: Asia/Tokyo", r"fields\[0\]\.format: '%H' tells no day"),
        (
            "day, format: '%Y%j'",
            r"format: in '%Y%j' there is no directive '%j'; use %Y %m .* unix or unix_ms",
        ),
        ("day, format: '%Y%m%d%'", r"there is no directive '%'"),
        ("day, format: '%d%m%d%Y'", r"%d is there twice"),
        ("day, format: '%Y%y%m%d'", r"%Y and %y tell the same"),
        ("age_days", r"fields\[0\]: an age is counted from somewhere: give one of `since`"),
        ("age_days, since: 2017-11-06, since_column: s", r"give one of `since`"),
        (
            "age_days, since: soon",
            r"fields\[0\]\.since: expected a time in ISO 8601 such as 2017-11-06, got 'soon'",
        ),
        ("age_days, since: 2017-11-06, zone: Asia/Tokyo", r"zone: ages are the same in every time zone"),
        ("age_days, since_column: s, missing: {value: '2017-11-06'}", r"would depend on `since_column`"),
        ("age_days, since_column: y", r"fields\[0\]: column 'y' is the label or weight"),
        ("hour, since: 2017-11-06", r"fields\[0\]\.since: only `transform: age_days` has since"),
        ("age_days, since: 2017-11-06, edges: [3, 1]", r"fields\[0\]\.edges\[1\]: edges must increase"),
        ("hour, width: 3", r"fields\[0\]\.width"),
    ],
)
def test_wrong_specs_of_times(keys: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of(f"{{name: t, type: time, transform: {keys}}}")
    with pytest.raises(SpecError, match=r"fields\[0\]: the key 'transform' is missing; add it"):
        spec_of("{name: t, type: time}")


def test_dates_in_yaml_are_dates_in_text() -> None:
    spec = spec_of("{name: t, type: time, transform: age_days, since: 2017-11-06}")
    assert spec == spec_of("{name: t, type: time, transform: age_days, since: '2017-11-06'}")
    assert parse_spec(spec.to_yaml(), "") == spec
    at = spec_of("{name: t, type: time, transform: age_days, since: 2017-11-06 16:00:00}")
    assert at.fields[0] == field_of(transform="age_days", since="2017-11-06 16:00:00")
    assert at.fingerprint != spec.fingerprint

"""Settings that several jobs have, and the checks of their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from ctr.defaults import MOST_POS_WEIGHT, MOST_SECONDS
from ctr.errors import SettingError, SpecError, StoreError, named
from ctr.settings.setting import Setting

if TYPE_CHECKING:
    from ctr.features import FeatureSpec
    from ctr.features.readers import RowChoice
else:
    FeatureSpec = Any  # which loads what help does without

OnBadRows = Literal["fail", "skip", "quarantine"]
Method = Literal["isotonic", "platt"]
Consistency = Literal["bsp", "ssp", "asp"]

_MASTER = re.compile(r"local(-cluster)?\[.+\]|local|spark://.+|yarn|k8s://.+")
_RAW_INPUTS = (
    "Raw files, perhaps compressed: paths, folders, patterns such as `'logs/day=*/*.csv'`, URIs such as "
    "s3://bucket/logs, or - for standard input."
)
_inputs = partial(Setting, metavar="INPUT", kind=list[str], argument=True, paths=True)
RawInputs = Annotated[list[str], _inputs(_RAW_INPUTS)]
Inputs = Annotated[Sequence[str | Path], _inputs(f"{_RAW_INPUTS} Or one hashed data set.")]
ModelFolder = Annotated[Path, Setting("Folder of the trained model.", metavar="DIR")]
Values = Annotated[
    str | None,
    Setting(
        "Raw rows whose values give features their texts: a path, folder, pattern or URI. They need no "
        "label, and may lack columns. Or a hashed data set, which names the field of each feature.",
        metavar="FILE",
    ),
]
Spec = Annotated[
    str | Path | FeatureSpec | None,
    Setting(
        "Feature spec: a YAML file, or a shipped one by name (criteo, avazu, libsvm, vw). A hashed data set "
        "carries its own.",
        metavar="SPEC",
        kind=str | None,
    ),
]
RawSpec = Annotated[
    str,
    Setting(
        "Feature spec: a YAML file, a folder with a fitted one, or a shipped one by name (criteo, avazu, "
        "libsvm, vw).",
        metavar="SPEC",
    ),
]
BadRows = Annotated[
    OnBadRows,
    Setting(
        "What to do with a row that cannot be read: stop there (fail), count it and leave it out (skip), or "
        "also write it to a file beside the output (quarantine)."
    ),
]
MaxBadFraction = Annotated[
    float,
    Field(ge=0.0, le=1.0),
    Setting(
        "With skip or quarantine: fail when more of the rows are bad than this. Up to 10 bad rows are always "
        "allowed, if they are at most half of the rows."
    ),
]


EngineName = Annotated[
    Literal["processes", "spark"] | None,
    Setting(
        "Run tasks or workers side by side in processes on this machine, or on a Spark cluster, whose "
        "machines see inputs and output under the same paths.",
        group="Engine",
    ),
]
Master = Annotated[
    str | None,
    Setting(
        "With {engine} spark: its master, such as local[4] or spark://host:7077. Default: as spark-submit "
        "has it, or all cores of this machine.",
        group="Engine",
        metavar="URL",
    ),
]


def _place(value: object) -> object:
    from ctr.features import is_uri

    return Path(value) if isinstance(value, str) and not is_uri(value) else value


Place = Annotated[Path | str, BeforeValidator(_place)]
"""Where a data set is written; a str is a URI."""

Lease = Annotated[float | None, Field(ge=0.5, le=MOST_SECONDS)]


def probability(value: float) -> float:
    """Refuse what is no probability, and 0."""
    if not 0 < value <= 1:
        raise ValueError(f"{value:g} is not a probability above 0: give one of at most 1, such as 0.2.")
    return value


def click_weight(value: float) -> float:
    """Refuse weights of clicks with which all predictions are certainties."""
    if not 1 / MOST_POS_WEIGHT <= value <= MOST_POS_WEIGHT:
        raise ValueError(
            f"{value:g} is no weight of clicks: give a number from {1 / MOST_POS_WEIGHT:g} to "
            f"{MOST_POS_WEIGHT:,.0f}, such as 5."
        )
    return value


def require_engine(engine: str | None, master: str | None) -> None:
    """Raise SettingError for a master without Spark, or of no kind that Spark has."""
    if master is None:
        return
    if engine != "spark":
        raise SettingError(f"{named('master')}: give {named('engine', 'spark')}, too, or leave it out.")
    if not _MASTER.fullmatch(master):
        raise SettingError(
            f"{named('master')} {master} is no master of Spark: write local[4], spark://host:port, yarn or"
            " k8s://https://host:port."
        )


@contextmanager
def _as_value_error() -> Iterator[None]:
    """What is wrong with a value, as pydantic takes it."""
    try:
        yield
    except (SpecError, StoreError) as error:
        raise ValueError(str(error)) from None


def store_url(url: str) -> str:
    """Refuse what names no store."""
    from ctr.ps import require_store_url

    with _as_value_error():
        require_store_url(url)
    return url


def _redis_url(url: str) -> str:
    """Refuse what names no store in Redis."""
    from ctr.ps import parse_redis_url, require_store_url

    with _as_value_error():
        parse_redis_url(url)
        require_store_url(url)
    return url


def stream_url(url: str) -> str:
    """Refuse what names no stream in Redis."""
    from ctr.ps import parse_redis_url

    with _as_value_error():
        parsed = parse_redis_url(url)
    if parsed.model is not None:
        raise ValueError(f"{parsed}: names a model, and not a stream; write ?stream=NAME.")
    return url


def folder_or_stream(place: str) -> str:
    """Refuse a URL that names no stream in Redis."""
    return stream_url(place) if "://" in place else place


Store = Annotated[str, AfterValidator(store_url)]
RedisStore = Annotated[str, AfterValidator(_redis_url)]
StreamUrl = Annotated[str, AfterValidator(stream_url)]
FolderOrStream = Annotated[str, AfterValidator(folder_or_stream)]
ModelInRedis = Annotated[RedisStore, Setting("Redis URL of the model.", metavar="URL")]


def chosen_rows(condition: str, *, meets: bool = True) -> RowChoice:
    """The rows that meet this condition, or the others. Raises ValueError."""
    from ctr.features.readers import RowChoice

    with _as_value_error():
        return RowChoice.parse(condition, meets=meets)


def _condition(text: str | None) -> str | None:
    if text is not None:
        chosen_rows(text)
    return text


HoldoutWhere = Annotated[str | None, AfterValidator(_condition)]
"""A condition as `ctr.features.readers.RowChoice` parses it."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(value: float | str) -> float:
    """A time such as `60s`, `5m` or `1h`, or a number of seconds. Raises ValueError."""
    text = str(value)
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        in_seconds = float(number) * _UNITS[unit]
    except ValueError:
        in_seconds = float("nan")
    if in_seconds <= 0:
        raise ValueError(f"{text!r} is too short: write a time above 0, such as 0.1s.")
    if not in_seconds < float("inf"):
        raise ValueError(f"{text!r} is not a time: write one such as 30s, 5m or 1h, or a number of seconds.")
    return in_seconds


Duration = Annotated[float, BeforeValidator(seconds)]
"""Seconds; also as text, such as `30s`."""
duration = partial(Setting, metavar="TIME", kind=str)


def scales(value: Mapping[str, float] | Sequence[str]) -> Mapping[str, float]:
    """`["site=0.5"]` as `{"site": 0.5}`; the last of a name counts. Raises ValueError."""
    if isinstance(value, Mapping):
        return value
    by_name = {}
    for text in [value] if isinstance(value, str) else value:
        name, _, number = str(text).rpartition("=")
        try:
            by_name[name] = float(number)
        except ValueError:
            raise ValueError(f"{text!r} is no scale: write NAME=NUMBER, such as site=0.5.") from None
    return by_name

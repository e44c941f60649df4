"""What is not installed is named, with the command that installs it."""

from __future__ import annotations

import sys

import pytest

from ctr.errors import DataError
from ctr.packages import require_packages


def test_what_is_there_passes() -> None:
    require_packages("a sum", {"math": "math"})


def test_all_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    needed = {"math": "math", "jinja2": "Jinja2", "no_such_module": "other"}
    with pytest.raises(DataError) as raised:
        require_packages("a page", needed, otherwise="; or do without")
    assert str(raised.value) == (
        "a page needs Jinja2 and other, which are not installed: pip install Jinja2 other; or do without."
    )

"""The examples in docs/features.md are parts of specs that can be loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ctr.features.spec import parse_spec

_TEXT = (Path(__file__).parents[3] / "docs" / "features.md").read_text("utf-8")
_EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", _EXAMPLES, ids=range(len(_EXAMPLES)))
def test_an_example_is_part_of_a_spec(text: str) -> None:
    found = yaml.safe_load(text)
    part = {"fields": found} if isinstance(found, list) else found
    spec = {"version": 1, "source": {"format": "delimited"}, "label": "click", **part}
    assert parse_spec(yaml.safe_dump(spec), "docs/features.md").all_fields

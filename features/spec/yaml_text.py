"""`SpecText`: the YAML text of a feature spec, with the line of each of its parts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ctr.errors import SpecError

Place = tuple[str | int, ...]


class SpecText:
    """Reads YAML, and converts problems to errors that begin with line and place."""

    data: Any
    """The document as plain Python values."""

    def __init__(self, text: str, lines: bool = True) -> None:
        """Raises SpecError if `text` is not YAML, or a mapping in it has a key twice.

        `lines`: whether errors of `explain` name the line.
        """
        self._lines = lines
        try:
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            if root is not None:
                self._refuse_duplicates(root, set())
                self.data = loader.construct_document(root)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise SpecError(f"{_position(error)}: not valid YAML: {_problem(error)}.") from None
        if not isinstance(root, yaml.MappingNode):
            kind = "an empty file" if root is None else _kind_of(root)
            raise SpecError(
                f": a feature spec is a mapping with the keys version, source, label and fields, got {kind}."
            )
        self._root = root

    def explain(self, error: ValidationError, vocabulary: Mapping[str, Sequence[str]]) -> SpecError:
        """Pydantic's first error, in words for the author of the YAML, and the number of further errors.

        An unknown key is compared with `vocabulary`, the keys of each part of a spec.
        """
        details = error.errors(include_url=False)
        # A misspelt key is the reason why the right one is missing.
        first = min(details, key=lambda detail: detail["type"] == "missing")
        place, problem = _complaint(first, vocabulary, self.data)
        more = f" ({len(details) - 1} more after it)" if len(details) > 1 else ""
        return self._error(place, problem + "." + more)

    def _error(self, place: Place, problem: str) -> SpecError:
        spelled = ""
        for step in place:
            spelled += f"[{step}]" if isinstance(step, int) else f".{step}" if spelled else step
        line = f":{self._line(place)}" if self._lines else ""
        return SpecError(f"{line}: {spelled}{': ' if spelled else ''}{problem}")

    def _line(self, place: Place) -> int:
        """The line, from 1, of the innermost part of `place` that is in the text."""
        node: yaml.Node = self._root
        line = node.start_mark.line
        for step in place:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line
                continue
            keys = node.value if isinstance(node, yaml.MappingNode) else []
            match = [(key, value) for key, value in keys if key.value == step]
            if not match:
                break
            line = match[0][0].start_mark.line
            node = match[0][1]
        return int(line) + 1

    def _refuse_duplicates(self, node: yaml.Node, seen: set[int]) -> None:
        # PyYAML silently keeps the last of two equal keys, so that a field could be lost.
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys: dict[str, int] = {}
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    line = key.start_mark.line + 1
                    if key.value in keys:
                        raise SpecError(
                            f":{line}: the key {key.value!r} is in line {keys[key.value]}"
                            f" already; remove one of the two."
                        )
                    keys[key.value] = line
                self._refuse_duplicates(value, seen)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._refuse_duplicates(item, seen)


def dump_yaml(data: dict[str, Any]) -> str:
    """YAML with keys in their given order and innermost collections on one line each."""
    return str(yaml.safe_dump(data, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110))


def _position(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""


def _problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if getattr(error, "context", None) == "while scanning an alias":
        return "text that begins with * or [ must be in quotes"
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)


_EXPECTED = {
    "string_type": "text (put it in quotes)",
    "string_too_short": "a name of at least one character",
    "int_type": "a whole number",
    "float_type": "a number (with an exponent: 1.0e+3)",
    "finite_number": "a finite number",
    "duration": "a whole number and its unit (s, m, h, d or w), such as 10m",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "string_unicode": "text that is valid Unicode",
    "int_parsing_size": "a smaller number",
    "recursion_loop": "a value that does not contain itself",
}
_BOUNDS = {"ge": "at least", "le": "at most", "gt": "above", "lt": "below"}
_KINDS = {"seq": "a list", "str": "text", "int": "a number", "float": "a number", "null": "nothing"}
_LONGEST = 80


def _kind_of(node: yaml.Node) -> str:
    return _KINDS.get(node.tag.rpartition(":")[2], "a single value")


def _shown(value: object) -> str:
    """A value for a message, cut after `_LONGEST` characters."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python will convert
        return "a huge number"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _part_of(place: Place, data: Any) -> str:
    """The part of a spec, as `FeatureSpec` divides it, that has or should have the key at `place`."""
    if len(place) == 1:
        return "the spec itself"
    return f"{data['fields'][place[1]]['type']} fields" if place[0] == "fields" else str(place[0])


def _unknown_key(place: Place, vocabulary: Mapping[str, Sequence[str]], data: Any) -> str:
    key = str(place[-1])
    homes = [part for part, keys in vocabulary.items() if key in keys]
    if homes:
        return f"there is no such key here; only {' and '.join(homes)} may have it; remove it, or move it"
    similar = difflib.get_close_matches(key, vocabulary[_part_of(place, data)], n=1)
    return f"there is no such key; {f'write {similar[0]!r}' if similar else 'remove it'}"


def _complaint(detail: ErrorDetails, vocabulary: Mapping[str, Sequence[str]], data: Any) -> tuple[Place, str]:
    """The place and problem of one of pydantic's errors."""
    kind, context, met, place = detail["type"], detail.get("ctx", {}), detail["input"], detail["loc"]
    if kind == "misfit":
        return (*place, *context["place"]), context["problem"]
    if kind == "extra_forbidden":
        return place, _unknown_key(place, vocabulary, data)
    if kind == "invalid_key":
        return place[:-1], f"every key must be text (put it in quotes), got {_shown(place[-1])}"
    if kind in ("model_type", "model_attributes_type") and place[0] == "crosses":
        return place, f"expected text such as site * hour, or a mapping of keys to values, got {_shown(met)}"
    if kind == "missing" and place[-1] == "transform" and _part_of(place, data) == "number fields":
        return place[:-1], (
            "a number needs a `transform`; add transform: log if it is a count (a missing one meant that so"
            " far; all of [0, 1) is one bucket), or transform: edges with a list of `edges`"
        )
    if kind == "string_type" and place[-1] == "transform" and isinstance(met, list):
        return place, f"a field has one transform, got {_shown(met)}; give each a field of its own"
    if kind == "missing":
        return place[:-1], f"the key {place[-1]!r} is missing; add it"
    if kind == "union_tag_not_found":
        return place, "the key 'type' is missing; add type: number or type: category"
    if kind == "union_tag_invalid":
        return (*place, "type"), f"expected {context['expected_tags']}, got {_shown(context['tag'])}"
    if kind == "literal_error":
        return place, f"expected {context['expected']}, got {_shown(met)}"
    if (bound := next((name for name in _BOUNDS if name in context), None)) is not None:
        limit = str(context[bound]).removesuffix(".0")
        return place, f"must be {_BOUNDS[bound]} {limit}, got {_shown(met)}"
    if kind == "too_short":
        least = {1: "one", 2: "two"}.get(context["min_length"], context["min_length"])
        return place, f"expected a list of {least} or more, got {_shown(met)}"
    expected = _EXPECTED.get(kind, "another kind of value")
    return place, f"expected {expected}, got {_shown(met)}"

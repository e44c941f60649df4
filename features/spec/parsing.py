"""`parse_spec`: a spec from YAML text."""

from __future__ import annotations

from functools import lru_cache

from pydantic import ValidationError

from ctr.errors import SpecError
from ctr.features.spec.crosses import Cross
from ctr.features.spec.fields import keys_of_fields
from ctr.features.spec.model import FeatureSpec
from ctr.features.spec.source import Source
from ctr.features.spec.windows import Window
from ctr.features.spec.yaml_text import SpecText


def parse_spec(text: str, where: str) -> FeatureSpec:
    """The spec in the YAML `text`; `where` (a file name) begins the message of a SpecError."""
    try:
        return _checked(_read(text))
    except SpecError as error:
        raise SpecError(f"{where}{error}") from None


# Takes 20 ms, and a job needs the same spec in several places.
_read = lru_cache(maxsize=8)(SpecText)


def _checked(document: SpecText) -> FeatureSpec:
    try:
        return FeatureSpec.model_validate(document.data)
    except ValidationError as error:
        vocabulary = {
            "the spec itself": tuple(FeatureSpec.model_fields),
            "source": tuple(Source.model_fields),
            **{f"{type_} fields": keys for type_, keys in keys_of_fields().items()},
            "crosses": tuple(Cross.model_fields),
            "windows": tuple(Window.model_fields),
        }
        raise document.explain(error, vocabulary) from None

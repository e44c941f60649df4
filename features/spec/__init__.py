"""What a feature spec may say, and its YAML text."""

from features.spec.model import CategoryField, FeatureSpec, NumberField, column_of, load_spec, parse_spec

__all__ = [
    "CategoryField",
    "FeatureSpec",
    "NumberField",
    "column_of",
    "load_spec",
    "parse_spec",
]

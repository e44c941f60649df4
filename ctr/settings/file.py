"""The file of settings that `ctr tune` writes and training reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ctr.errors import SettingError, named, path_of
from ctr.features import is_dataset, load_spec
from ctr.features.dataset import open_folder
from ctr.features.spec import FeatureSpec, is_shipped, unfitted_fingerprint
from ctr.outputs import replace_file
from ctr.settings.setting import Settings
from ctr.settings.shared import scales

COMMAND = "train"
_VERSION = 1
_KEYS = {"command", "version", "spec", "options", "measured"}


@dataclass(frozen=True, slots=True)
class NamedSpec:
    """The feature spec that settings belong to."""

    path: str
    """Relative to the folder of the settings, or the name of a spec that ships; a data set stands for its."""
    transform: str
    """The fingerprint of the spec with the scales of the settings, before it learns from data."""

    @staticmethod
    def of(path: str | Path, spec: FeatureSpec, settings: Path) -> NamedSpec:
        """`spec`, which is at `path`, as the file `settings` names it; it has the scales of the settings."""
        if not is_shipped(path):
            path = os.path.relpath(Path(path).resolve(), settings.parent.resolve())
        return NamedSpec(str(path), unfitted_fingerprint(spec))


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What a file of settings says."""

    path: Path
    options: dict[str, Any]
    """Settings of `ctr train`, by the names of their options."""
    spec: NamedSpec | None
    """None: the options suit any."""
    lines: Mapping[str, int]
    """In which line of the file each option is."""

    def values(self, settings: type[Settings], also: Sequence[str] = ()) -> dict[str, Any]:
        """The options that `settings` has, as its values; `also`: the names of others that may be there.

        Raises SettingError, with the line, for an option that is neither, and for a wrong value.
        """
        described, values = settings.described(), {}
        for option, value in self.options.items():
            name, place = option.replace("-", "_"), f"{self.path}:{self.lines[option]}"
            known = (name in described or name in also) and name not in ("settings", "inputs")
            if not known or "_" in option:
                remedy = f"write {name.replace('_', '-')}" if known else "take it out of `options`"
                raise SettingError(f"{place}: there is no option {option!r}; {remedy}.")
            if name in described:
                values[name] = settings.value(name, value, f"{place}: {option}")
        return values

    def spec_for(self, spec: str | Path | FeatureSpec | None, inputs: Sequence[str | Path]) -> Any:
        """The spec of a job: the one given, or for raw rows the one that the file names.

        Raises SettingError when the settings belong to another spec than the one given, or the data set's.
        """
        if self.spec is None:
            return spec
        own = self.spec.path
        if not is_shipped(own):
            own = os.path.normpath(self.path.parent / own)
        dataset = next(filter(is_dataset, inputs), None)
        given = dataset or spec or own
        if given == own and not is_shipped(own) and not Path(own).exists():
            raise SettingError(
                f"{self.path}: names the spec {own}, which is not there; put it back, or name it with "
                f"{named('spec')}."
            )
        transform = self._transform(open_folder(dataset).path if dataset else given)
        if transform == self.spec.transform:
            return spec if dataset else given
        wanted = f"{self.path}: its settings belong to the spec {own} (transform {self.spec.transform[:12]})"
        if given == own:
            raise SettingError(
                f"{wanted}, which has changed since (now {transform[:12]}); restore it, or run `ctr tune` "
                "again."
            )
        of = "the one given" if isinstance(given, FeatureSpec) else f"that of {given}"
        remedy = "build it with that spec" if dataset else f"leave out {named('spec')}"
        raise SettingError(
            f"{wanted}, not to {of} (transform {transform[:12]}); {remedy}, or run `ctr tune` on it."
        )

    def _transform(self, spec: str | Path | FeatureSpec) -> str:
        """The fingerprint of a spec with those scales of the file that it can have, before it learns."""
        loaded = spec if isinstance(spec, FeatureSpec) else load_spec(spec)
        of_fields = scales(self.options.get("scale", ()))
        return unfitted_fingerprint(
            loaded.with_scales({k: v for k, v in of_fields.items() if k in loaded.names})
        )


def with_file(settings: type[Settings], given: Mapping[str, Any], also: Sequence[str] = ()) -> dict[str, Any]:
    """The settings given, and those of the file that they name; `also` as for `SettingsFile.values`."""
    if given.get("settings") is None:
        return dict(given)
    file = read_settings(path_of("settings", given["settings"]))
    values = file.values(settings, also)
    scale = {**values.get("scale", {}), **scales(given.get("scale", {}))}
    spec = file.spec_for(given.get("spec"), given["inputs"])
    return {**values, **given, "scale": scale, "spec": spec}


def write_settings(
    path: Path, options: Mapping[str, Any], spec: NamedSpec, measured: Mapping[str, object]
) -> None:
    """Write options of `ctr train`, the spec that they belong to, and what was measured of them."""
    head = f"# Settings that `ctr tune` found: ctr {COMMAND} --settings {path.name} ...\n"
    entry: dict[str, object] = {"command": COMMAND, "version": _VERSION, "spec": asdict(spec)}
    entry |= {"options": dict(options), "measured": dict(measured)}
    with replace_file(path) as partial:
        partial.write_text(head + yaml.safe_dump(entry, sort_keys=False, allow_unicode=True), "utf-8")


def read_settings(path: Path) -> SettingsFile:
    """What this file says.

    Raises SettingError for another file, one for another command or version, and one with unknown keys.
    """
    try:
        text = path.read_text("utf-8")
        entry, tree = yaml.safe_load(text), yaml.compose(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingError(f"{path}: cannot be read as YAML ({' '.join(str(error).split())}).") from None
    if not (isinstance(entry, dict) and "command" in entry and isinstance(entry.get("options"), dict)):
        raise SettingError(
            f"{path}: is not a settings file: it needs `command` and `options`; `ctr tune` writes such files."
        )
    if (command := entry.get("command")) != COMMAND:
        raise SettingError(
            f"{path}: has settings for the command {command!r}, not for {COMMAND!r}: `ctr tune` writes those."
        )
    if (version := entry.get("version")) != _VERSION:
        raise SettingError(f"{path}: is of version {version!r}; this ctr reads version {_VERSION}.")
    if unknown := [key for key in entry if key not in _KEYS]:
        raise SettingError(
            f"{path}: does not know the key {unknown[0]!r}; it has {', '.join(sorted(_KEYS))}."
        )
    assert isinstance(tree, yaml.MappingNode)  # as it is a dict
    (options,) = (value for key, value in tree.value if key.value == "options")
    lines = {key.value: key.start_mark.line + 1 for key, _ in options.value}
    named_options = {str(name): value for name, value in entry["options"].items()}
    return SettingsFile(path, named_options, _named_spec(path, entry), lines)


def _named_spec(path: Path, entry: Mapping[str, Any]) -> NamedSpec | None:
    if "spec" not in entry:
        return None
    spec = entry["spec"]
    keys = {"path", "transform"}
    if not (isinstance(spec, dict) and spec.keys() == keys and all(isinstance(spec[k], str) for k in keys)):
        raise SettingError(
            f"{path}: `spec` is {spec!r}, and needs the texts `path` and `transform`; leave it out for "
            "settings that suit any spec."
        )
    return NamedSpec(spec["path"], spec["transform"])

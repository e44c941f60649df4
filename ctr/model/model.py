"""`Model`: a linear model and the transform it was trained with, ready to predict."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from ctr.defaults import MOST_BAD
from ctr.errors import DataError, ModelError, SettingError, path_of, require_counts
from ctr.features import BadRowPolicy, Batch, Chunk, FeatureSpec, Slots, Transform, batch_of, open_source
from ctr.features.spec import SERVED
from ctr.features.windows import ServedFeatures, ServedHistory, Windows
from ctr.metrics import MetricSummary
from ctr.model.calibration import Calibration, Method
from ctr.model.folder import FORMAT, FORMAT_VERSION
from ctr.model.linear import LinearModel, probabilities_of
from ctr.optimizers import Float32
from ctr.outputs import printable

if TYPE_CHECKING:
    import pyarrow as pa

    from ctr.model.examples import Examples
    from ctr.model.explanation import Explanation


_SCORED_ROWS = 65_536
"""Examples of files per scored batch."""
_SEEN_BY_WINDOWS = 4
"""Windows have seen at most this many times the training rows: validation rows and earlier data, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A trained model: weights, and the transform they were trained with.

    Immutable except for its windows; any number of threads may predict with one object. `id` tells whether
    two models are equal.
    """

    linear: LinearModel
    transform: Transform
    manifest: dict[str, Any]
    """What `GET /v1/model` shows: JSON values only."""
    dictionary: bytes | None = None
    """The content of a dictionary file, to be saved with the model; None if the model was loaded."""
    windows: Windows | None = None
    """The history of earlier rows that the spec's windows need; it changes as events are added."""
    state: tuple[Slots, Float32] | None = None
    """The optimizer's state, to be saved with the model; None if the model was loaded."""
    shared: ServedHistory | None = None
    """The history that replaces `windows` in a server that shares its windows with others."""
    folder: Path | None = None
    """The folder it was loaded from; None if it was just trained."""
    calibration: Calibration | None = None
    """Maps its margins to log-odds; None: the margins are the log-odds."""
    examples: Examples | None = None
    """Rows that are saved with the model, to test it when it is loaded."""

    @staticmethod
    def of(
        spec: FeatureSpec,
        linear: LinearModel,
        facts: Mapping[str, Any],
        dictionary: bytes | None = None,
        windows: Windows | None = None,
        state: tuple[Slots, Float32] | None = None,
        examples: Examples | None = None,
    ) -> Model:
        """The model with these weights, trained with the transform of `spec`; `facts` go into the manifest.

        `windows`: the history of the spec's windows; None: empty.
        """
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "id": model_id(spec, linear),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "bits": spec.bits,
            "spec_fingerprint": spec.fingerprint,
            "nonzero_weights": int(linear.weights.size),
            **facts,
        }
        if spec.windows:
            windows = windows or Windows(spec)
            manifest["windows"] = {"keys": windows.keys, "bytes": windows.bytes}
        transform = Transform(spec, with_label=False, history=windows)
        return Model(linear, transform, manifest, dictionary, windows, state, examples=examples)

    def __repr__(self) -> str:
        return (
            f"<Model {self.id}, slots: 2**{self.spec.bits}, non-zero weights: {self.linear.weights.size:,}>"
        )

    def _repr_html_(self) -> str:
        """The model as a notebook shows it."""
        columns = ("examples", "logloss", "normalized_entropy", "auc", "calibration")
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in ("", *columns))
        rows = ""
        for name, metrics in self.metrics.items():
            values = [metrics[column] for column in columns]
            cells = "".join(f"<td>{'-' if value is None else f'{value:,.5g}'}</td>" for value in values)
            rows += f"<tr><th>{name}</th>{cells}</tr>"
        optimizer = ", ".join(f"{k}={v}" for k, v in self.manifest.get("optimizer", {}).items())
        return (
            f"<b>Model {self.id}</b>: {self.linear.weights.size:,} non-zero weights in 2**{self.spec.bits} "
            f"slots; {optimizer}<table><tr>{head}</tr>{rows}</table>"
        )

    def __reduce__(self) -> tuple[Callable[[bytes], Model], tuple[bytes]]:
        """Pickle the model as the bytes of its folder."""
        from ctr.features import folder_bytes
        from ctr.model.artifact import model_of_bytes

        return model_of_bytes, (folder_bytes(self.save),)

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Its metrics by the rows they come from: `progressive` validation or `training`, and `holdout`."""
        return dict(self.manifest.get("metrics", {}))

    @property
    def history(self) -> dict[str, list[dict[str, float]]]:
        """Log loss during training: `progressive` by examples of the first pass, `holdout` by pass."""
        training = self.manifest.get("training", {})
        curve = [{"examples": n, "logloss": loss} for n, loss in training.get("learning_curve", ())]
        return {"progressive": curve, "holdout": list(training.get("holdout_by_pass", ()))}

    @property
    def id(self) -> str:
        """12 hex digits of the SHA-256 of weights and transform: equal models have the same id everywhere."""
        return str(self.manifest["id"])

    @property
    def spec(self) -> FeatureSpec:
        """The feature spec of the transform."""
        return self.transform.spec

    def predict(self, examples: Batch | Chunk | object) -> Float32:
        """The click probability of each example, float32[n].

        Examples are hashed or raw. Raw ones are a row, which is a mapping of column to value, or a list of
        rows; an Arrow table or anything that exports one (a frame of pandas or polars); a dict of columns; or
        files: a path, a folder, a pattern, a URI, or a list of those, whose rows need no label. In a row, a
        column that is absent or None is a missing value; a table must have all columns, and may have others.

        With windows, a list of rows is a request, as to a server: each row has the features of this moment,
        and does not count for other rows. A table is a log that continues the history of the windows: its
        rows are in the order of time, and each counts for the later ones, as in
        `ctr features build --windows-from`. The model's windows do not change.

        Raises DataError, naming row and column, for a value of the wrong type, for a column of a row that the
        model does not know, and for a row that is older than the windows' history by more than the slack.
        """
        return probabilities_of(self.margins(examples))

    def margins(self, examples: Batch | Chunk | object) -> Float32:
        """The log-odds of a click for each example, float32[n]; exact even if the probability rounds to 1.

        As in `predict`, they are calibrated if the model is.
        """
        if isinstance(examples, Batch | Chunk):
            return self.log_odds(self.linear.margins(examples))
        from ctr.model.inputs import is_table, paths_of, table_of

        if (paths := paths_of(examples)) is not None:
            source = open_source(paths, self.spec, labels="ignored", windows=self.windows_after())
            margins = [self.margins(batch) for batch in source.batches(_SCORED_ROWS)]
            return np.concatenate([np.empty(0, np.float32), *margins])
        if is_table(examples):
            examples = table_of(examples)
        elif isinstance(examples, Mapping):
            examples = [examples]
        return self.log_odds(self.linear.margins(self._hashed(examples)))

    def log_odds(self, margins: Float32) -> Float32:
        """The log-odds of a click, float32[n], for sums of weights; calibrated if the model is."""
        return margins if self.calibration is None else self.calibration(margins)

    def calibrated(self, calibration: Calibration) -> Model:
        """The same model with another calibration, and so with another id."""
        entries = {
            "id": model_id(self.spec, self.linear, calibration),
            "calibrated": calibration.to_json(),
        }
        return replace(self, manifest={**self.manifest, **entries}, calibration=calibration)

    def _hashed(self, examples: object) -> Batch:
        if not self.spec.fields:
            raise DataError(
                f"{self.spec.source.format} features have no columns, so rows and tables cannot hold them; "
                "predict a file of that format, or hashed examples."
            )
        if self.spec.windows and hasattr(examples, "__arrow_c_stream__"):
            return self._logged(examples)
        return batch_of(examples, self.transform)

    def _logged(self, rows: object) -> Batch:
        """The rows of a table as a log, with the features that it carries, or that continue the windows."""
        import pyarrow as pa

        table, label = pa.table(rows), self.spec.label_column
        clicks = [label] if label is not None and label in table.column_names else []
        carried = SERVED in table.column_names
        history = ServedFeatures(self.spec) if carried else self.windows_after()
        also = [SERVED] if carried else clicks
        return batch_of(
            table, Transform(self.spec, with_label=False, history=history, take_in=True, also=also)
        )

    def windows_after(self) -> Windows | None:
        """A copy of the windows' history, for raw rows that follow it; None: the model has no windows.

        Raises ModelError if the windows are in Redis.
        """
        if self.shared is not None:
            raise ModelError(
                "this model's windows are in Redis; load the model from its folder to predict tables."
            )
        return None if self.windows is None else self.windows.copy()

    def evaluate(
        self,
        data: object,
        *,
        on_bad_rows: Literal["fail", "skip"] = "fail",
        max_bad_fraction: float = MOST_BAD,
    ) -> MetricSummary:
        """The model's metrics on labelled raw rows or a hashed data set; see `ctr.model.inputs_of`.

        `ctr.evaluate` gives more. Raises DataError for other data, and for a bad row.
        """
        from ctr.model.evaluation import evaluate  # imports this module
        from ctr.model.inputs import inputs_of

        if on_bad_rows not in ("fail", "skip"):
            raise SettingError(f"on_bad_rows is {on_bad_rows!r}: give one of fail, skip.")
        with inputs_of(data, self.spec) as inputs:
            source = open_source(
                inputs,
                self.spec,
                on_bad_rows=BadRowPolicy(skip=on_bad_rows == "skip", max_fraction=max_bad_fraction),
                windows=self.windows_after(),
            )
            return evaluate(self, source).summary()

    def calibrate(self, data: object, method: Method, *, replace: bool = False) -> Model:
        """The same model, calibrated on labelled rows that it was not trained on.

        `data` as for `evaluate`; `method` is "isotonic" or "platt". The metrics on these rows, before and
        after, are in `manifest["metrics"]`. `replace`: replace the model's calibration, if it has one.
        Raises ModelError for a calibrated model otherwise, and DataError for other data, for a bad row, and
        unless there are rows with and without a click.
        """
        from ctr.model.calibration_fit import calibrate, require_method, require_uncalibrated
        from ctr.model.inputs import inputs_of

        require_method(method)
        if not replace:
            require_uncalibrated(self, "replace=True")
        with inputs_of(data, self.spec) as inputs:
            source = open_source(inputs, self.spec, windows=self.windows_after())
            calibrated = calibrate(self.linear, source, method)
        assert calibrated is not None  # nothing stops it
        are_paths = isinstance(data, str | Path | list | tuple)
        return calibrated.of_saved(self, [printable(path) for path in inputs] if are_paths else ["a table"])

    def weights(self, values: object = None, rows: int | None = None) -> pa.Table:
        """A table with a row per non-zero weight, by slot.

        Columns: `slot` (uint64), `weight` (float32), `feature` (its text, such as `site=example.com`, or
        null; ` | ` separates the texts of features that share a slot) and `count` (int64: how often it
        occurred in the training data, or null).

        Texts come from the dictionary of the data set that the model was trained on, if it has one, from the
        buckets of windows, and from `values`: raw rows (at most `rows` of them, from the start), as paths or
        as a table (see `ctr.model.inputs_of`), which need no label and may lack columns. If `values` is a
        hashed data set, a feature without a known text has the name of its field or cross, such as `site`.

        Raises DataError or ModelError if the dictionary or the values cannot be read.
        """
        from ctr.weights import weight_table

        return weight_table(
            self.linear.slots, self.linear.weights, self.names(values, rows), bias=self.spec.bias
        )

    def names(self, values: object = None, rows: int | None = None) -> pa.Table | None:
        """The texts in `weights`, as columns `slot`, `feature` and `count`; None: no text is known."""
        from ctr.model.inputs import inputs_of
        from ctr.weights import names_of_values, with_names

        names = with_names(self.dictionary_table(), self.window_names())
        if values is None:
            return names
        with inputs_of(values) as inputs:
            return with_names(names, names_of_values(self.spec, inputs, rows))

    def window_names(self) -> pa.Table | None:
        """The texts of all features that the model's windows can have; None: it has no windows."""
        from ctr.features.readable import window_names

        training = self.manifest.get("training", {})
        rows = [model.get("rows") or 0 for model in (training, *training.get("lineage", ()))]
        return window_names(self.spec, _SEEN_BY_WINDOWS * (sum(rows) or 1e6))

    @overload
    def explain(self, data: Mapping[str, object]) -> Explanation: ...
    @overload
    def explain(self, data: object, rows: int = 3) -> Explanation | list[Explanation]: ...
    def explain(self, data: object, rows: int = 3) -> Explanation | list[Explanation]:
        """The contribution of each feature of a row to its prediction, the largest first.

        A row is a mapping of columns to values, as `predict` takes it. For other data, such as a dict of
        columns, the result is a list for the first `rows` rows. Raises DataError as `predict` does.
        """
        from ctr.model.explanation import explain, explain_row  # imports this module
        from ctr.model.inputs import inputs_of, is_table, without_file

        require_counts(rows=rows)
        if isinstance(data, Mapping) and not is_table(data):
            return explain_row(self, data)
        with inputs_of(data) as inputs:
            return [
                replace(each, place=without_file(each.place, data, inputs[0]))
                for each in explain(self, inputs, rows)
            ]

    def dictionary_table(self) -> pa.Table | None:
        """The dictionary of the model's data set (see `ctr.features.read_dictionary`), or None.

        Raises ModelError if another model has replaced the folder that this one was loaded from.
        """
        import pyarrow as pa

        content = self._dictionary()
        return None if content is None else pa.ipc.open_file(content).read_all()

    def _dictionary(self) -> bytes | None:
        if self.dictionary is not None or self.folder is None:
            return self.dictionary
        from ctr.model.artifact import dictionary_of

        return dictionary_of(self)

    def save(self, path: str | Path) -> None:
        """Write the model as the folder `path`, where it replaces an earlier model.

        If the model was loaded, its state and dictionary are copied from its folder. Raises ModelError if
        another model has replaced that folder, if `path` is anything but a model, or if the disk refuses.
        """
        from ctr.model.artifact import save_model, state_of

        if self.shared is not None:
            raise ModelError("its windows are in Redis: save the model that it was made from.")
        state = state_of(self) if self.state is None else self.state
        save_model(replace(self, dictionary=self._dictionary()), path_of("path", path), state)

    def indexed(self, shared: Path | None = None) -> Model:
        """The same model with a faster lookup for a few rows at a time; it needs more memory.

        `shared`: a folder in which processes share the lookup.
        """
        return replace(self, linear=self.linear.indexed(None if shared is None else shared / self.id))

    def with_shared(self, history: ServedHistory) -> Model:
        """The same model with `history` instead of windows of its own."""
        transform = Transform(self.spec, with_label=False, history=history)
        return replace(self, transform=transform, windows=None, shared=history)

    def take_in(self, rows: Sequence[Mapping[str, object]], until: int | None = None) -> int:
        """Add rows that have happened to the windows' history; returns how many were added.

        They are in the order of time, and none is later than `until`, in microseconds since 1970. Either all
        are added or none. Raises DataError as `predict` does, also if a row comes too late.
        """
        history = self.shared or self.windows
        assert history is not None
        return history.take_in(self.transform.cells_of(rows), self.transform.columns, until)

    def add_clicks(self, rows: Sequence[Mapping[str, object]]) -> int:
        """Add clicks on rows in the windows' history, by key and time; returns how many have a known key."""
        history = self.shared or self.windows
        assert history is not None
        return history.add_clicks(self.transform.cells_of(rows), self.transform.columns)


def model_id(spec: FeatureSpec, linear: LinearModel, calibration: Calibration | None = None) -> str:
    """12 hex digits of the SHA-256 of the transform, the weights and the calibration."""
    digest = hashlib.sha256(spec.fingerprint.encode())
    digest.update(linear.slots.data)
    digest.update(linear.weights.data)
    if calibration is not None:
        digest.update(calibration.digest)
    return digest.hexdigest()[:12]

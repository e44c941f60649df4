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
from ctr.errors import DataError, ModelError
from ctr.features import BadRowPolicy, Batch, Chunk, FeatureSpec, Slots, Transform, batch_of, open_source
from ctr.features.windows import ServedHistory, Windows
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
"""Examples of files that are scored at a time."""
_SEEN_BY_WINDOWS = 4
"""So many times the rows of training at most, as some of theirs may be held out, or of earlier data."""


@dataclass(frozen=True, slots=True)
class Model:
    """A trained model: weights, and the transform they were trained with.

    Immutable but for its windows, and any number of threads may predict with one object.
    """

    linear: LinearModel
    transform: Transform
    manifest: dict[str, Any]
    """What `GET /v1/model` shows: JSON values only."""
    dictionary: bytes | None = None
    """The file of a dictionary of features, to be saved with the model; None in one that was loaded."""
    windows: Windows | None = None
    """What the windows of the spec know of earlier rows; this alone changes, as events are added to it."""
    state: tuple[Slots, Float32] | None = None
    """The optimizer's state, to be saved with the model; None in one that was loaded."""
    shared: ServedHistory | None = None
    """What is asked and told instead of `windows`, in a server that shares its windows with others."""
    folder: Path | None = None
    """Where it was loaded from; None in one that was just trained."""
    calibration: Calibration | None = None
    """What hold-out rows have shown of its margins; None: they are log-odds as they are."""
    examples: Examples | None = None
    """Rows that are kept with it, to test it when it is loaded."""

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
        """The model of these weights, trained with the transform of `spec`; `facts` go into the manifest.

        `windows`: what the windows of `spec` know; None: nothing yet.
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
        rows = "".join(
            f"<tr><th>{name}</th>"
            + "".join(f"<td>{'-' if (value := of[key]) is None else f'{value:,.5g}'}</td>" for key in columns)
            + "</tr>"
            for name, of in self.metrics.items()
        )
        optimizer = ", ".join(f"{k}={v}" for k, v in self.manifest.get("optimizer", {}).items())
        return (
            f"<b>Model {self.id}</b>: {self.linear.weights.size:,} non-zero weights in 2**{self.spec.bits} "
            f"slots; {optimizer}<table><tr>{head}</tr>{rows}</table>"
        )

    def __reduce__(self) -> tuple[Callable[[bytes], Model], tuple[bytes]]:
        """Pickled as the bytes of its folder."""
        from ctr.features import folder_bytes
        from ctr.model.artifact import model_of_bytes

        return model_of_bytes, (folder_bytes(self.save),)

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """What is known of its quality: `progressive` validation or `training` rows, and `holdout` rows."""
        return dict(self.manifest.get("metrics", {}))

    @property
    def history(self) -> dict[str, list[dict[str, float]]]:
        """Log loss while it was trained: by `examples` of the first pass, and of the hold-out by `pass`."""
        training = self.manifest.get("training", {})
        curve = [{"examples": n, "logloss": loss} for n, loss in training.get("learning_curve", ())]
        return {"progressive": curve, "holdout": list(training.get("holdout_by_pass", ()))}

    @property
    def id(self) -> str:
        """12 hex digits of the SHA-256 of weights and transform: the same model has the same id anywhere."""
        return str(self.manifest["id"])

    @property
    def spec(self) -> FeatureSpec:
        """The feature spec of the transform."""
        return self.transform.spec

    def predict(self, examples: Batch | Chunk | object) -> Float32:
        """The click probability of each example, float32[n].

        Examples are hashed ones, or raw ones: a list of rows, each a mapping of column to value; a table that
        gives itself as Arrow (a `pyarrow.Table`, a frame of pandas or polars); a dict of columns; or files: a
        path, a folder, a pattern, a URI, or a list of those, whose rows need no label. In a row, a column
        that is absent or None is a missing value; a table has to have all columns, and may have others.

        With windows, a list of rows is a request, as to a server: each row has the features of this moment,
        and counts for no other. A table is a log that goes on from what the windows know: its rows come in
        the order of time, and each counts for those after it, as in `ctr features build --windows-from`. The
        model's windows stay as they are.

        Raises DataError, naming row and column, for a value of the wrong kind, in a row for a column that the
        model does not know, and for a row that is earlier than what the windows know by more than the slack.
        """
        return probabilities_of(self.margins(examples))

    def margins(self, examples: Batch | Chunk | object) -> Float32:
        """The log-odds of a click of each example, float32[n]: exact also where a probability rounds to 1.

        They are those of `predict`: after calibration, if the model has one.
        """
        if isinstance(examples, Batch | Chunk):
            return self.log_odds(self.linear.margins(examples))
        from ctr.model.inputs import is_table, paths_of, table_of

        if (paths := paths_of(examples)) is not None:
            source = open_source(paths, self.spec, labels="ignored", windows=self.windows_after())
            parts = [self.margins(batch) for batch in source.batches(_SCORED_ROWS)]
            return np.concatenate([np.empty(0, np.float32), *parts])
        hashed = self._hashed(table_of(examples) if is_table(examples) else examples)
        return self.log_odds(self.linear.margins(hashed))

    def log_odds(self, margins: Float32) -> Float32:
        """The log-odds of a click, float32[n], of sums of weights: calibrated, if the model is."""
        return margins if self.calibration is None else self.calibration(margins)

    def calibrated(self, calibration: Calibration) -> Model:
        """The same model with another calibration, and so with another id."""
        of_model = {
            "id": model_id(self.spec, self.linear, calibration),
            "calibrated": calibration.to_json(),
        }
        return replace(self, manifest={**self.manifest, **of_model}, calibration=calibration)

    def _hashed(self, examples: Batch | Chunk | object) -> Batch | Chunk:
        if isinstance(examples, Batch | Chunk):
            return examples
        if not self.spec.fields:
            raise DataError(
                f"{self.spec.source.format} features have no columns, so rows and tables cannot give any; "
                "predict a file of that format, or hashed examples."
            )
        if self.spec.windows and hasattr(examples, "__arrow_c_stream__"):
            return self._logged(examples)
        return batch_of(examples, self.transform)

    def _logged(self, rows: object) -> Batch:
        """The rows of a table, which come one after the other behind those that the windows know."""
        import pyarrow as pa

        table, label = pa.table(rows), self.spec.label_column
        clicks = [label] if label is not None and label in table.column_names else []
        history = self.windows_after()
        return batch_of(
            table, Transform(self.spec, with_label=False, history=history, take_in=True, also=clicks)
        )

    def windows_after(self) -> Windows | None:
        """What the windows know now, for raw rows that come after: a copy; None: the model has none.

        Raises ModelError where they are in Redis.
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
        """How well the model predicts labelled raw rows or a hashed data set: see `ctr.model.inputs_of`.

        `ctr.evaluate` tells more. Raises DataError for what is no such data, and for a bad row.
        """
        from ctr.model.evaluation import evaluate  # which knows models
        from ctr.model.inputs import inputs_of

        with inputs_of(data, self.spec) as inputs:
            source = open_source(
                inputs,
                self.spec,
                on_bad_rows=BadRowPolicy(skip=on_bad_rows == "skip", max_fraction=max_bad_fraction),
                windows=self.windows_after(),
            )
            return evaluate(self, source).summary()

    def calibrate(self, data: object, method: Method, *, replace: bool = False) -> Model:
        """The same model with its probabilities fitted to labelled rows that it was not trained on.

        `data` as for `evaluate`; `method` is "isotonic" or "platt". What the rows say of the model, before
        and after, is in `manifest["metrics"]`. `replace`: put the new calibration in the place of one that
        the model has. Raises ModelError for a calibrated model otherwise, and DataError for what is no such
        data, a bad row, and rows that were all clicked, or none.
        """
        from ctr.model.calibration_fit import calibrate, require_method, require_uncalibrated
        from ctr.model.inputs import inputs_of

        require_method(method)
        if not replace:
            require_uncalibrated(self, "replace=True")
        with inputs_of(data, self.spec) as inputs:
            source = open_source(inputs, self.spec, windows=self.windows_after())
            fitted = calibrate(self.linear, source, method)
        assert fitted is not None  # nothing stops it
        given = isinstance(data, str | Path | list | tuple)
        return fitted.of_saved(self, [printable(each) for each in inputs] if given else ["a table"])

    def weights(self, values: object = None, rows: int | None = None) -> pa.Table:
        """What the model has learnt: a table with a row per weight that is not 0, by slot.

        Columns: `slot` (uint64), `weight` (float32), `feature` (its text, such as `site=example.com`, or
        null; ` | ` stands between those of features that share a slot) and `count` (int64: how often it
        occurred in the data of training, or null).

        Texts are those of the dictionary of the data set that the model was trained on, if it has one, of
        `values`: raw rows (at most `rows` of them, from the start), as paths or as a table (see
        `ctr.model.inputs_of`), which need no label and may lack columns; and those of the buckets of windows.
        Of a hashed data set as `values`, a feature whose text is not known has the name of its field or
        cross, such as `site`.

        Raises DataError and ModelError when dictionary or values cannot be read.
        """
        from ctr.weights import weight_table

        return weight_table(
            self.linear.slots, self.linear.weights, self.names(values, rows), bias=self.spec.bias
        )

    def names(self, values: object = None, rows: int | None = None) -> pa.Table | None:
        """The texts that `weights` gives, as columns `slot`, `feature` and `count`; None: none are known."""
        from ctr.model.inputs import inputs_of
        from ctr.weights import names_of_values, with_names

        known = with_names(self.dictionary_table(), self.window_names())
        if values is None:
            return known
        with inputs_of(values) as inputs:
            return with_names(known, names_of_values(self.spec, inputs, rows))

    def window_names(self) -> pa.Table | None:
        """The same of the features that its windows can give; None: it has no windows."""
        from ctr.features.readable import window_names

        training = self.manifest.get("training", {})
        rows = [each.get("rows") or 0 for each in (training, *training.get("lineage", ()))]
        return window_names(self.spec, _SEEN_BY_WINDOWS * (sum(rows) or 1e6))

    @overload
    def explain(self, data: Mapping[str, object]) -> Explanation: ...
    @overload
    def explain(self, data: object, rows: int = 3) -> Explanation | list[Explanation]: ...
    def explain(self, data: object, rows: int = 3) -> Explanation | list[Explanation]:
        """What each feature of a row adds to its prediction: `contributions`, the most telling first.

        A row is a mapping of columns to values, as `predict` takes it. Of other data (a dict of columns among
        them), the first `rows` are explained, as a list. Raises DataError as `predict` does.
        """
        from ctr.model.explanation import explain, explain_row  # which know models
        from ctr.model.inputs import inputs_of, is_table

        if isinstance(data, Mapping) and not is_table(data):
            return explain_row(self, data)
        with inputs_of(data) as inputs:
            return list(explain(self, inputs, rows))

    def dictionary_table(self) -> pa.Table | None:
        """The features that the model's data set had texts for (`ctr.features.read_dictionary`), or None.

        Raises ModelError when another model has taken the place of the folder that this was loaded from.
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
        """Write the model as the folder `path`; a model that was there is replaced.

        Of a model that was loaded, the rest is read in its folder. Raises ModelError when another model has
        taken that folder's place, when `path` is something else than a model, and when the disk refuses.
        """
        from ctr.model.artifact import save_model, state_of

        if self.shared is not None:
            raise ModelError("its windows are in Redis: save the model that it was made of.")
        state = state_of(self) if self.state is None else self.state
        save_model(replace(self, dictionary=self._dictionary()), Path(path), state)

    def indexed(self, shared: Path | None = None) -> Model:
        """The same model, which looks weights up faster, for a few rows at a time; it needs more memory.

        `shared`: a folder in which processes share what it needs.
        """
        return replace(self, linear=self.linear.indexed(None if shared is None else shared / self.id))

    def with_shared(self, history: ServedHistory) -> Model:
        """The same model, which asks `history` instead of windows of its own."""
        transform = Transform(self.spec, with_label=False, history=history)
        return replace(self, transform=transform, windows=None, shared=history)

    def take_in(self, rows: Sequence[Mapping[str, object]], until: int | None = None) -> int:
        """Rows that have happened count for what windows say from now on; how many of them do.

        They come in the order of time, and none is later than `until`, in microseconds since 1970. All are
        taken in, or none: raises DataError as `predict` does, also for one that comes too late.
        """
        history = self.shared or self.windows
        assert history is not None
        return history.take_in(self.transform.cells_of(rows), self.transform.columns, until)

    def add_clicks(self, rows: Sequence[Mapping[str, object]]) -> int:
        """Clicks on rows that have been taken in: with the same key and time. How many have a known key."""
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

"""`build_datasets`: hashes raw rows into a data set, or into two, one of them a hold-out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ctr.errors import SettingError, named
from ctr.features import BLOCK_ROWS, FeatureSpec, RawSource, fit, load_spec, shuffled
from ctr.features.dataset import (
    DatasetDraft,
    DatasetManifest,
    RemoteOutput,
    RowNote,
    Unfinished,
    dataset_folders,
    kept_fit,
    key_of,
    raw_file_entries,
)
from ctr.features.inputs import InputFile, input_files
from ctr.features.raw import any_chosen
from ctr.features.readable import Dictionary
from ctr.features.spec import learnt_of
from ctr.jobs.warm_up import compile_hashing_beside
from ctr.progress import Report, progress
from ctr.settings import BuildJob

if TYPE_CHECKING:
    from ctr.engines import Engine
    from ctr.features import BadRowPolicy, Batch
    from ctr.features.readers import RowChoice
    from ctr.features.windows import Windows

_MOST_THREADS = 4  # more hash faster than one thread writes: 0.5 and 0.8 microseconds per Criteo row
_FIRST_PASS = 0.5  # of the time that a build with --shuffle takes: its first pass


@dataclass(slots=True)
class Portion:
    """The rows of one data set."""

    name: str
    """The path or URI of the data set."""
    out: Path
    """The local folder of the data set."""
    remote: RemoteOutput | None
    """The URI to upload it to, if any."""
    choice: RowChoice | None
    source: RawSource
    unfinished: Unfinished
    texts: Dictionary | None = None
    row_note: RowNote = field(default_factory=RowNote)
    uploaded: set[str] = field(default_factory=set)
    """The names of uploaded parts."""


def open_portions(
    job: BuildJob,
    spec: FeatureSpec | None = None,
    policies: Mapping[Path | str, BadRowPolicy] | None = None,
) -> list[Portion]:
    """The inputs with the fitted spec. Raises DataError and SpecError.

    `spec`: the spec that `job.spec` names, if it is already loaded. `policies`: what becomes of the bad rows
    of each data set; None: what the job says.
    """
    wanted = spec or load_spec(job.spec)
    if job.engine is not None and wanted.windows:
        _require_apart(wanted, job)
    compile_hashing_beside(wanted, with_fields=True)
    outputs = {name: RemoteOutput(name) for name in job.outs if isinstance(name, str)}
    for remote in outputs.values():
        remote.require_replaceable()
    files = input_files(job.inputs)
    fitted = _fitted(wanted, files, job)
    resumable = (
        job.shuffle is None
        and job.dictionary is None
        and job.engine is None
        and not fitted.windows
        and job.on_bad_rows == "fail"
    )
    portions = []
    for name, choice in job.outs.items():
        out = name if isinstance(name, Path) else outputs[name].place
        source = RawSource(
            fitted,
            files,
            on_bad_rows=job.bad_row_policy(name) if policies is None else policies[name],
            threads=min(max((os.cpu_count() or 1) - 1, 1), _MOST_THREADS),  # one core is for writing
            choice=choice,
            windows=_windows(fitted, job.windows_from),
            with_fields=True,
        )
        of_fit, of_build = (key_of(each, files, BLOCK_ROWS, choice) for each in (wanted, fitted))
        unfinished = Unfinished(out, of_build if resumable else None, fitted, of_fit)
        portions.append(Portion(str(name), out, outputs.get(str(name)), choice, source, unfinished))
    if job.dictionary is not None:
        last = portions[-1]
        last.texts = Dictionary(fitted, last.source.columns, job.dictionary)
        last.source.watch = last.texts.add
    return portions


def _require_apart(spec: FeatureSpec, job: BuildJob) -> None:
    """Raise SettingError if tasks of an engine cannot compute the features of the spec's windows."""
    from ctr.features.windows import needs_totals

    engine = f"{named('engine')} {job.engine}"
    if (window := needs_totals(spec)) is not None:
        raise SettingError(
            f"{engine}: click rates, as of window {window.name!r}, depend on the click rate of all earlier"
            f" rows, which a single task does not know; remove `rate` from its features, or leave"
            f" {named('engine')} out."
        )
    if any(isinstance(out, str) for out in job.outs):
        raise SettingError(
            f"{engine}: with windows, tasks exchange files beside the data set; give {named('out')} a folder"
            " on a file system that all machines mount."
        )


def _windows(spec: FeatureSpec, before: Path | None) -> Windows | None:
    """The initial windows of `spec`: empty, or those of the data set or model `before`."""
    from ctr.features.windows import Windows, load_windows

    if before is None:
        return Windows(spec) if spec.windows else None
    if not spec.windows:
        raise SettingError(f"{named('windows_from')}: the spec has no windows; leave it out.")
    return load_windows(spec, before)


def build_datasets(
    job: BuildJob, portions: Sequence[Portion], on_resume: Callable[[int], None]
) -> list[DatasetManifest]:
    """Write the data sets, either all or none.

    `on_resume` is called with the number of rows that an interrupted build has written, if it is continued.
    On Ctrl-C, KeyboardInterrupt is raised with a text about the result. Raises DataError, also if a hold-out
    has no row.
    """
    try:
        with ExitStack() as opened:
            for portion in portions:
                opened.enter_context(portion.unfinished)
            if before := sum(portion.unfinished.before for portion in portions):
                on_resume(before)
            with dataset_folders([portion.out for portion in portions]) as folders:
                drafts = [
                    DatasetDraft(
                        portion.source.spec, folder, unfinished=None if job.engine else portion.unfinished
                    )
                    for portion, folder in zip(portions, folders, strict=True)
                ]
                windows = [portion.source.windows for portion in portions]
                known = [None if each is None else each.keys for each in windows]
                with _engine_of(job) as engine:
                    for portion, draft in zip(portions, drafts, strict=True):
                        _write(portion, draft, job.shuffle, engine)
                manifests = [
                    draft.finish(
                        shuffled=job.shuffle,
                        dictionary=portion.texts,
                        windows=portion.source.windows,
                        windows_before=before,
                        raw_files=None  # in a random order
                        if job.shuffle is not None
                        else raw_file_entries(portion.source.inputs, portion.source.rows_by_file()),
                        row_note=portion.row_note,
                    )
                    for draft, portion, before in zip(drafts, portions, known, strict=True)
                ]
            for portion in portions:
                if portion.remote is not None:
                    portion.remote.publish(portion.uploaded)
            return manifests
    except KeyboardInterrupt:
        outs = " and ".join(portion.name for portion in portions)
        result = f"{outs} {'was' if len(portions) == 1 else 'were'} not written"
        kept = sum(each.unfinished.done.rows for each in portions if each.unfinished.key is not None)
        resume = f"; the same command continues after {kept:,} rows." if kept else "."
        raise KeyboardInterrupt(result + resume) from None


def _engine_of(job: BuildJob) -> AbstractContextManager[Engine | None]:
    """The engine of a job; None if it has none."""
    if job.engine is None:
        return nullcontext()
    from ctr.engines import open_engine  # imports the workers of training

    return closing(open_engine(job.engine, job.master))


def _fitted(wanted: FeatureSpec, files: Sequence[InputFile], job: BuildJob) -> FeatureSpec:
    """The spec fitted to the training rows, perhaps by an earlier build."""
    for name, choice in job.outs.items():
        out = name if isinstance(name, Path) else RemoteOutput(name).place
        if (kept := kept_fit(out, wanted, files, BLOCK_ROWS, choice)) is not None:
            return kept
    *_, choice = job.outs.values()
    if choice is not None:
        with _engine_of(job):  # if it cannot run, that is known before rows are read
            if not any_chosen(wanted, files, choice):
                raise choice.splits_nothing("every row")
    shared = job.out if isinstance(job.out, Path) else None
    return fit_files(wanted, files, choice, job.engine, job.master, shared)


def fit_files(
    spec: FeatureSpec,
    files: Sequence[InputFile],
    choice: RowChoice | None = None,
    engine: str | None = None,
    master: str | None = None,
    out: Path | None = None,
) -> FeatureSpec:
    """As `ctr.features.fit`, by tasks of an engine if there is one; `out`: see `fit_splits`.

    Also raises EngineError.
    """
    if engine is None or learnt_of(spec) is not None:
        return fit(spec, files, choice)
    from ctr.engines import open_engine  # imports the workers of training
    from ctr.jobs.splits import fit_splits

    with closing(open_engine(engine, master)) as opened:
        return fit_splits(opened, spec, files, choice, out)


def _write(portion: Portion, draft: DatasetDraft, shuffle: int | None, engine: Engine | None) -> None:
    """Write the rows of a portion, in random order if `shuffle` is a seed."""
    source, before = portion.source, portion.unfinished.done
    read = 0 if before.rows or shuffle is not None else sum(file.size for file in source.inputs)
    held_out = portion.choice if portion.choice is not None and portion.choice.meets else None
    what = "hashing" if held_out is None else "hashing the hold-out"
    if engine is not None:
        from ctr.jobs.splits import upload_splits, write_splits

        source.on_left_out = portion.row_note.leave_out
        if portion.remote is None:
            write_splits(engine, source, draft, portion.choice, portion.out, what)
        else:
            folder = portion.remote.folder
            portion.uploaded = upload_splits(engine, source, draft, portion.choice, folder, what)
        if not draft.done.rows and held_out is not None:
            raise held_out.splits_nothing("no row")
        return
    with progress(what, read, before.rows) as show:
        if shuffle is None:
            for positions in source.not_chosen() if before.rows else ():  # by the interrupted build
                portion.row_note.leave_out(positions[positions < before.position])
            source.on_left_out = portion.row_note.leave_out
            batches: Iterable[Batch] = source.batches(BLOCK_ROWS, before.position)
            rows = draft.write(
                batches, lambda: source.position, lambda rows: show(rows, source.fraction_read)
            )
        else:
            rows = _write_shuffled(portion, draft, shuffle, show)
    if not rows and held_out is not None:
        raise held_out.splits_nothing("no row")


def _write_shuffled(portion: Portion, draft: DatasetDraft, seed: int, show: Report) -> int:
    """As `DatasetDraft.write`, in random order."""
    source, hashed = portion.source, 0

    def first_pass(rows: int) -> None:
        nonlocal hashed
        hashed = rows
        show(rows, _FIRST_PASS * source.fraction_read)

    def writing(rows: int) -> None:
        show(hashed, _FIRST_PASS + (1 - _FIRST_PASS) * rows / hashed)

    # Temporary files are beside the data set, which needs the disk space anyway.
    place = portion.out.resolve().parent
    with closing(shuffled(source, BLOCK_ROWS, seed, place, progress=first_pass)) as batches:
        return draft.write(batches, progress=writing)

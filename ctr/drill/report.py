"""`DrillReport`: what a drill did and found, for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from ctr.drill.fault_plan import FaultReport
from ctr.drill.freezes import FreezeReport
from ctr.drill.proof import Proof, StoreSums
from ctr.table import table


@dataclass(slots=True)
class JobReport:
    """One training job of a drill."""

    faults: list[FaultReport] = field(default_factory=list)
    proofs: dict[str, Proof] = field(default_factory=dict)
    """By the moment at which the store was compared with the ledger."""
    began: float = 0.0
    """When the first push was sent, by the machine's monotonic clock."""
    sums: StoreSums | None = None
    """What the store held in the end."""
    logloss: float | None = None
    """On the held-out rows; None when the job failed."""
    problems: list[str] = field(default_factory=list)
    """What else was wrong."""


@dataclass(slots=True)
class DrillReport:
    """Everything that a drill did."""

    settings: Mapping[str, Any]
    undisturbed: JobReport | None = None
    disturbed: list[JobReport] = field(default_factory=list)
    freezes: FreezeReport | None = None
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        """Everything that was wrong; the drill is passed when there is nothing."""
        found = [] if self.undisturbed is None else _problems_of("undisturbed", self.undisturbed)
        for number, job in enumerate(self.disturbed, 1):
            found += _problems_of(f"round {number}", job)
            change = self._change(job)
            # Where it is better, that is because pushes are slowed down: the weights are fresher.
            if change is not None and not change <= self._tolerance:
                found.append(f"round {number}: the log loss is {change:.2%} worse than undisturbed")
        if self.freezes is not None:
            found += self.freezes.problems
        return found

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        freezes = self.freezes
        return {
            "passed": not self.problems,
            "problems": self.problems,
            "seconds": self.seconds,
            "settings": dict(self.settings),
            "jobs": {name: _job_json(job) for name, job in self._jobs()},
            "freezes": None
            if freezes is None
            else asdict(freezes) | {"pushes": sum(proof.pushes for proof in freezes.proofs)},
        }

    def lines(self) -> list[str]:
        """The report as text."""
        s = self.settings
        lines = [
            f"drill of {s['rows']:,} rows, seed {s['seed']}: {s['workers']} workers ({s['consistency']}), "
            f"{s['nodes']} primaries, {s['replicas']} replica each, node timeout {s['node_timeout_s']:g} s"
        ]
        for number, job in enumerate(self.disturbed, 1):
            lines += ["", *_fault_table(number, job)]
        if self.disturbed:
            lines += [
                "  went on: until the first push was acknowledged that was sent after the fault",
                "  whole: until nothing was missing of all that had ever been acknowledged",
            ]
        lines += ["", *self._proof_table()]
        for number, job in enumerate(self.disturbed, 1):
            lines += self._logloss_line(number, job)
        if self.freezes is not None:
            lines += ["", *_freeze_lines(self.freezes, s["freeze_s"])]
        problems = self.problems
        lines.append("")
        lines += [f"  {problem}" for problem in problems]
        count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
        verdict = f"FAILED: {count}" if problems else "PASSED: nothing lost, nothing doubled"
        return [*lines, f"{verdict} ({self.seconds:.0f} s)"]

    @property
    def _tolerance(self) -> float:
        return float(self.settings["tolerance"])

    def _change(self, job: JobReport) -> float | None:
        """By how much of it a job's log loss differs from the undisturbed one's."""
        if self.undisturbed is None or self.undisturbed.logloss is None or job.logloss is None:
            return None
        return job.logloss / self.undisturbed.logloss - 1

    def _logloss_line(self, number: int, job: JobReport) -> Iterator[str]:
        change = self._change(job)
        if change is not None and self.undisturbed is not None:
            yield (
                f"round {number}: log loss on held-out rows {job.logloss:.5f}, undisturbed "
                f"{self.undisturbed.logloss:.5f}: {change:+.3%} (allowed: +{self._tolerance:.1%})"
            )

    def _jobs(self) -> list[tuple[str, JobReport]]:
        jobs = [("undisturbed", self.undisturbed)] if self.undisturbed else []
        return jobs + [(f"round {number}", job) for number, job in enumerate(self.disturbed, 1)]

    def _proof_table(self) -> list[str]:
        rows = [
            (
                f"{name}, {moment}",
                f"{proof.partitions}",
                f"{proof.chunks:,}",
                f"{proof.pushes:,}",
                f"{proof.acknowledged:,}",
                f"{proof.sent_again:,}",
                "equal" if proof.holds else "NOT EQUAL",
            )
            for name, job in self._jobs()
            for moment, proof in job.proofs.items()
        ]
        heads = (
            "store against ledger",
            "partitions",
            "chunks",
            "pushes",
            "acknowledged",
            "sent again",
            "sums",
        )
        return table([heads, *rows], "<>>>>>>") if rows else []


def _problems_of(name: str, job: JobReport) -> list[str]:
    found = [f"{moment}: {each}" for moment, proof in job.proofs.items() for each in proof.problems]
    return [f"{name}, {problem}" for problem in found + job.problems]


def _fault_table(number: int, job: JobReport) -> list[str]:
    heads = (f"faults of round {number}", "at", "lasted", "went on", "whole", "sent again")
    rows = [
        (
            fault.what,
            f"{fault.began - job.began:.1f} s",
            "" if fault.ended is None else f"{fault.ended - fault.began:.1f} s",
            "never" if fault.recovery_s is None else f"{fault.recovery_s:.2f} s",
            "" if fault.repair_s is None else f"{fault.repair_s:.2f} s",
            f"{fault.sent_again:,}",
        )
        for fault in job.faults
    ]
    return table([heads, *rows], "<>>>>>")


def _freeze_lines(freezes: FreezeReport, freeze_s: float) -> list[str]:
    pushes = sum(proof.pushes for proof in freezes.proofs)
    partitions = sum(proof.partitions for proof in freezes.proofs)
    lines = [
        f"{freezes.freezes} freezes of {freeze_s:g} s, of {freezes.servers} servers in "
        f"{freezes.seconds:.0f} s: {freezes.in_flight} caught a push on its way"
    ]
    if freezes.recoveries_s:
        lines.append(
            f"  pushes went on {median(freezes.recoveries_s) * 1000:.0f} ms after the freeze ended "
            f"(median; at most {max(freezes.recoveries_s) * 1000:.0f} ms)"
        )
    sums = "equal" if all(proof.holds for proof in freezes.proofs) else "NOT EQUAL"
    lines.append(f"  {pushes:,} pushes to {partitions:,} partitions: sums {sums}")
    return lines


def _job_json(job: JobReport) -> dict[str, Any]:
    return {
        "faults": [
            {
                "kind": fault.kind,
                "what": fault.what,
                "at_s": fault.began - job.began,
                "at_fraction": fault.fraction,
                "lasted_s": None if fault.ended is None else fault.ended - fault.began,
                "recovery_s": fault.recovery_s,
                "repair_s": fault.repair_s,
                "sent_again": fault.sent_again,
                "problem": fault.problem,
            }
            for fault in job.faults
        ],
        "proofs": {moment: asdict(proof) for moment, proof in job.proofs.items()},
        "logloss": job.logloss,
        "problems": job.problems,
    }

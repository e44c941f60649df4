"""`ctr ps check`: checks the safety and speed of a store's servers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.reporting import Report, stopping
from ctr.cli.tables import some, table

if TYPE_CHECKING:
    from ctr.ps.status import Finding
    from ctr.settings import Setting, Store


def check(
    report: Report,
    store: Annotated[
        Store,
        Setting(
            "Store URL: redis://, rediss://, redis+cluster://, rediss+cluster:// or embedded://.",
            metavar="URL",
        ),
    ],
) -> None:
    """Check the servers of a store: settings that lose data, memory, replicas, clocks, and speed.

    Takes some seconds. Pulls and pushes are measured with a small temporary model; other models are not
    touched. Every line has a verdict and, unless it is ok, a remedy. Exit code 1 if there is a problem;
    warnings do not count.

    Examples:

    - `ctr ps check --store redis://localhost:6379/0`
    - `ctr ps check --store redis+cluster://10.0.0.7:6379,10.0.0.8:6379 --json check.json`
    """
    with ExitStack() as opened:
        opened.enter_context(stopping("The model of the check was removed."))
        findings = _findings(store, opened)
    problems = [finding for finding in findings if finding.verdict == "problem"]
    summary = {"passed": not problems, "findings": [asdict(finding) for finding in findings]}
    report(_lines(findings), summary)
    if problems:
        raise typer.Exit(1)


def _findings(store: str, opened: ExitStack) -> list[Finding]:
    from ctr.interrupts import stop_requests
    from ctr.ps import parse_redis_url
    from ctr.ps.status import check_servers, measure_store

    scheme, _, rest = store.partition("://")
    if scheme == "memory":
        raise typer.BadParameter("memory:// has no servers to check; name a store in Redis.")
    stop = opened.enter_context(stop_requests())
    if scheme == "embedded":
        from ctr.ps.servers import EmbeddedRedis, embedded_nodes

        store = opened.enter_context(EmbeddedRedis(embedded_nodes(rest))).url
    url = parse_redis_url(store)
    findings = check_servers(url)
    if not stop.is_set():
        findings += measure_store(url, stop)
    if stop.is_set():
        raise KeyboardInterrupt
    return findings


def _lines(findings: list[Finding]) -> list[str]:
    """One line per check, for the first of the nodes with the worst verdict."""
    from ctr.ps.status import VERDICTS

    checks: dict[str, list[Finding]] = {}
    for finding in findings:
        checks.setdefault(finding.check, []).append(finding)
    rows = []
    for name, by_node in checks.items():
        worst = max(by_node, key=lambda finding: VERDICTS.index(finding.verdict))
        alike = sum(finding.verdict == worst.verdict for finding in by_node)
        where = "" if worst.node is None or alike == len(by_node) else f"{worst.node}: "
        if where and alike > 1:
            where = f"{alike} nodes, such as {where}"
        rows.append((worst.verdict, name, where + worst.value, worst.remedy))
    counts = {kind: sum(row[0] == kind for row in rows) for kind in VERDICTS}
    total = f"{some(counts['problem'], 'problem')}, {some(counts['warning'], 'warning')}, {counts['ok']} ok"
    return [*table(rows, "<<<<"), total]

"""Tables are plain text: whole lines, whatever the terminal and whatever the cells hold."""

from __future__ import annotations

import pytest

from ctr.cli.tables import duration, size, some, table


def test_cells_are_aligned_and_lines_end_with_their_text() -> None:
    rows = [("node", "keys", "replicas"), ("a:6379", "1,000", ""), ("b", "-", "none")]
    assert table(rows, "<><") == [
        "node     keys  replicas",
        "a:6379  1,000",
        "b           -  none",
    ]


def test_letters_take_the_room_that_a_terminal_gives_them() -> None:
    rows = [("語", "1"), ("e\u0301", "2"), ("ab", "3")]
    assert table(rows, "<>") == ["語  1", "e\u0301   2", "ab  3"]


def test_nothing_is_wrapped_styled_or_read_as_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    long = "[bold]:smile: 'x' 1.5[/bold] " + "y" * 200
    assert table([(long, "1")], "<>") == [f"{long}  1"]


def test_figures() -> None:
    assert [some(1, "worker"), some(2_000, "worker"), some(3, "pass")] == [
        "1 worker",
        "2,000 workers",
        "3 passes",
    ]
    assert [size(12), size(2_048), size(31.2 * 2**20)] == ["12 B", "2.0 KiB", "31.2 MiB"]
    assert [duration(0.01), duration(1.5), duration(200), duration(7_500)] == [
        "10.0 ms",
        "1.5 s",
        "3 min 20 s",
        "2 h 5 min",
    ]

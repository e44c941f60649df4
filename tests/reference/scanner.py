"""Splitting delimited text, byte by byte in plain Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    raw: bytes
    """With its newline."""
    cells: tuple[bytes, ...]
    problem: str = ""
    """`text after quote`, `open quote`, or nothing; the cells end where it was met."""


def split_plain(text: bytes, delimiter: bytes) -> list[Row]:
    """The rows of whole lines, without quoting."""
    rows = []
    for line in text.split(b"\n")[:-1]:
        content = line[:-1] if line.endswith(b"\r") else line
        rows.append(Row(line + b"\n", tuple(content.split(delimiter))))
    return rows


def split_quoted(text: bytes, delimiter: bytes) -> list[Row]:
    """The rows of whole lines in which cells may be quoted."""
    rows = []
    at = 0
    while at < len(text):
        end, cells, problem = _quoted_row(text, at, delimiter)
        rows.append(Row(text[at:end], cells, problem))
        at = end
    return rows


def _quoted_row(text: bytes, at: int, delimiter: bytes) -> tuple[int, tuple[bytes, ...], str]:
    cells: list[bytes] = []
    problem = ""
    while True:
        cell = b""
        if text[at : at + 1] == b'"':
            at += 1
            while True:
                if at == len(text):
                    return at, tuple(cells), "open quote"
                if text[at : at + 2] == b'""':
                    cell += b'"'
                    at += 2
                elif text[at : at + 1] == b'"':
                    at += 1
                    break
                else:
                    cell += text[at : at + 1]
                    at += 1
            if text[at : at + 2] == b"\r\n":
                at += 1
            if text[at : at + 1] not in (delimiter, b"\n"):
                problem = "text after quote"
                at = text.index(b"\n", at)
        else:
            while text[at : at + 1] not in (delimiter, b"\n"):
                cell += text[at : at + 1]
                at += 1
            if text[at : at + 1] == b"\n" and cell.endswith(b"\r"):
                cell = cell[:-1]
        cells.append(cell)
        at += 1
        if text[at - 1 : at] == b"\n":
            return at, tuple(cells), problem

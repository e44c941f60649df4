"""Folders that appear complete or not at all, also when a process is killed."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ctr.features.folder import _swap_by_renames, replace_folder, replace_folders


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def write_and_fail(target: Path, error: BaseException) -> None:
    with replace_folder(target) as folder:
        write(folder, x="new")
        raise error


def write_while_a_file_comes(targets: list[Path], aside: Path) -> None:
    """A file stands at the last target when the new folders are to."""
    with replace_folders(targets) as folders:
        for folder in folders:
            write(folder, x="new")
        if targets[-1].exists():
            targets[-1].rename(aside)
        targets[-1].write_text("a file that came meanwhile")


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let the system refuse to write files longer than this, as it refuses on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_the_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with replace_folder(target) as folder:
        assert folder.parent == target.parent
        write(folder, x="1")
        (folder / "sub").mkdir()
        write(folder / "sub", y="2")
        assert not target.exists()
    assert content(target) == {"x": "1", "sub/y": "2"}
    assert os.listdir(target.parent) == ["b"]


@pytest.mark.parametrize("there_before", [True, False])
def test_of_several_folders_all_appear_or_none(tmp_path: Path, there_before: bool) -> None:
    one, other = tmp_path / "one", tmp_path / "b" / "other"
    if there_before:
        with replace_folders([one, other]) as folders:
            for number, folder in enumerate(folders):
                write(folder, x=f"old {number}")
        assert (content(one), content(other)) == ({"x": "old 0"}, {"x": "old 1"})
    with pytest.raises(NotADirectoryError):
        write_while_a_file_comes([one, other], tmp_path / "moved")
    assert one.exists() == there_before
    assert not there_before or content(one) == {"x": "old 0"}
    assert sorted(os.listdir(tmp_path)) == sorted(["b", *(["moved", "one"] if there_before else [])])
    assert os.listdir(other.parent) == ["other"]


def test_permissions_are_those_of_an_ordinary_folder(tmp_path: Path) -> None:
    with replace_folder(tmp_path / "target"):
        pass
    (tmp_path / "ordinary").mkdir()
    assert (tmp_path / "target").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_an_old_folder_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    write(target, x="old", y="old")
    with replace_folder(str(target)) as folder:
        write(folder, x="new")
        assert content(target) == {"x": "old", "y": "old"}
    assert content(target) == {"x": "new"}
    assert os.listdir(tmp_path) == ["target"]


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with replace_folder(tmp_path / "target") as folder:
        write(folder, x="new")
    assert content(tmp_path / "target") == {"x": "new"}
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full")], ids=repr
)
@pytest.mark.parametrize("old", [True, False])
def test_a_failure_leaves_everything_as_it_was(tmp_path: Path, error: BaseException, old: bool) -> None:
    target = tmp_path / "target"
    if old:
        target.mkdir()
        write(target, x="old")
    with pytest.raises(type(error)):
        write_and_fail(target, error)
    assert os.listdir(tmp_path) == (["target"] if old else [])
    assert not old or content(target) == {"x": "old"}


def test_a_disk_that_refuses_leaves_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    write(target, x="old")
    with (
        file_size_limit(1 << 16),
        pytest.raises(OSError, match="File too large"),
        replace_folder(target) as folder,
    ):
        write(folder, x="n" * (1 << 20))
    assert content(target) == {"x": "old"}
    assert os.listdir(tmp_path) == ["target"]


def test_without_an_atomic_exchange_two_folders_swap_all_the_same(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        write(folder, x=folder.name)
    _swap_by_renames(one, other)
    assert content(tmp_path) == {"one/x": "other", "other/x": "one"}


def test_a_swap_that_fails_half_way_is_undone(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    write(tmp_path / "place", x="old")
    with pytest.raises(FileNotFoundError):
        _swap_by_renames(tmp_path / "never written", tmp_path / "place")
    assert content(tmp_path) == {"place/x": "old"}


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    write(tmp_path, target="a file")
    with pytest.raises(NotADirectoryError, match="target"), replace_folder(tmp_path / "target"):
        pass
    assert content(tmp_path) == {"target": "a file"}


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with replace_folder(tmp_path / "link") as folder:
        write(folder, x="new")
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "real") == {"x": "new"}


def test_an_open_file_of_the_old_folder_stays_readable(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    write(target, x="old")
    with (target / "x").open() as file:
        with replace_folder(target) as folder:
            write(folder, x="new")
        assert file.read() == "old"

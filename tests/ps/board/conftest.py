"""The boards of tests, on one Redis and on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ctr.ps.board.job_board import JobBoard
from tests.ps.job_boards import Boards, opened_boards


@pytest.fixture(params=["redis_url", "cluster_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def boards() -> Iterator[Boards]:
    with opened_boards() as open_board:
        yield open_board


@pytest.fixture
def board(url: str, boards: Boards) -> JobBoard:
    return boards(url)

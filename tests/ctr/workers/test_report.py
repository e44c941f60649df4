"""What a worker reports of its end, and what the leader of its job makes of it."""

from __future__ import annotations

import orjson
import pytest

from ctr.errors import naming_options
from ctr.ps import LostPushesError, parse_redis_url
from ctr.workers.report import read_failure


@pytest.mark.parametrize("as_options", [False, True])
def test_lost_pushes_of_a_worker_are_told_with_the_names_that_the_user_knows(*, as_options: bool) -> None:
    """Workers are commands, whose messages name options, also in the job of a Python program."""
    url = parse_redis_url("redis://localhost?model=clicks")
    with naming_options():
        message = str(LostPushesError(url))
    assert "with --resume, or start again" in message
    reports = {"failure:here": orjson.dumps({"kind": "LostPushesError", "message": message})}
    with naming_options(as_options=as_options):
        error = read_failure(url, message, reports)
    assert isinstance(error, LostPushesError)
    assert ("--resume" in str(error)) is as_options
    assert (str(error) == message) is as_options

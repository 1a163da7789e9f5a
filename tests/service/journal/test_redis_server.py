"""The tests' own redis-server."""

import os
from pathlib import Path

import pytest

from tests import redis_server
from tests.redis_server import NoRedis, redis_or_skip


def no_program() -> tuple[str, dict[str, str]]:
    raise NoRedis("none here")


def test_stopped_server_removes_its_files():
    with redis_or_skip(appendfsync="always") as server:
        pid, directory = server.pid, server.directory
        assert Path(directory, "appendonlydir").is_dir()
        server.kill()
        server.start()
        pid_again = server.pid
    assert not Path(directory).exists()
    for process in (pid, pid_again):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", NoRedis)])
def test_a_missing_server_is_a_skip_but_a_failure_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
):
    monkeypatch.setattr(redis_server, "_program", no_program)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="none here"), redis_or_skip():
        pass

"""The tests' own redis-server."""

import os
from pathlib import Path

import pytest
import redis

from tests import redis_server as helpers
from tests.redis_server import NoRedis, RedisServer, redis_or_skip


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


def test_server_whose_port_another_one_took_starts_on_the_next(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    ports = iter([redis_server.port])
    free_port = helpers.free_port
    monkeypatch.setattr(helpers, "free_port", lambda: next(ports, None) or free_port())
    with redis_or_skip() as server, redis.Redis(port=server.port) as client:
        assert client.info("server")["process_id"] == server.pid != redis_server.pid


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", NoRedis)])
def test_a_missing_server_is_a_skip_but_a_failure_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
):
    monkeypatch.setattr(helpers, "_program", no_program)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="none here"), redis_or_skip():
        pass

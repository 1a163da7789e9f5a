"""The commands of docs/guides/redis.md, run as written against Redis and a server."""

import sys

import pytest
import redis

from tests.docs.documents import DOCUMENTS, Shell, session

NAME = "docs/guides/redis.md"
CLI = "import redis, sys; print(redis.Redis(port=sys.argv[1]).execute_command(*sys.argv[2:]))"


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    with shell.server:
        yield shell


def test_the_commands_run_as_written(shell, tmp_path, redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    port = redis_server.port
    script = session(DOCUMENTS[NAME]).replace("localhost:6379", f"127.0.0.1:{port}")
    client = f"redis-cli() {{ {sys.executable} -c '{CLI}' {port} \"$@\"; }}\n"
    (sources,), said = shell.run(client + script, tmp_path)
    assert "3 rows learned, 1 refused" in said and "exit code 1" in said
    (cursor,) = sources["sources"]
    assert (cursor["name"], cursor["rows"], cursor["refused"]) == ("redis/clicks", 3, 1)
    assert "'maybe' is not a label of this model" in said.splitlines()[-1]

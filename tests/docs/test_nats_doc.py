"""The commands of docs/guides/nats.md, run as written against NATS and a server."""

import json

import pytest

from tests.docs.documents import DOCUMENTS, Shell, session
from tests.nats_server import running_nats

NAME = "docs/guides/nats.md"


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    with shell.server:
        yield shell


def test_the_commands_run_as_written(shell, tmp_path):
    rows = [json.dumps({"clicked": n % 2, "event": f"e{n}", "site": "mail"}) for n in range(17)]
    with running_nats(tmp_path / "nats") as nats:
        nats.create("CLICKS")
        nats.send("CLICKS", [row.encode() for row in rows])
        address = nats.url.removeprefix("nats://")
        script = session(DOCUMENTS[NAME]).replace("localhost:4222", address)
        _, said = shell.run(script, tmp_path)
    assert "17 rows learned" in said
    assert said.splitlines()[-1].split()[:5] == ["nats/CLICKS", "18", "0", "17", "0"]

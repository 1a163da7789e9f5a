"""The commands of docs/guides/mqtt.md, run as written against Mosquitto and a server."""

import sys

import pytest

from tests.docs.documents import DOCUMENTS, Shell, session
from tests.mosquitto import environment, running_mosquitto

NAME = "docs/guides/mqtt.md"


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    with shell.server:
        yield shell


def test_the_commands_run_as_written(shell, tmp_path, monkeypatch):
    lines = session(DOCUMENTS[NAME]).splitlines()
    (consume,) = (line for line in lines if line.startswith("dualstream consume"))
    # The guide uses two terminals; the test waits for each.
    program = consume.replace("dualstream", f"exec {sys.executable} -m dualstream.service", 1)
    background = [
        f"({program}) 2> said & process=$!",
        "trap 'kill -9 $process 2> gone || true' EXIT",
        "until grep -q 'delivers a message again' said; do sleep 0.05; done",
    ]
    until = "until dualstream sources heat | grep 'mqtt.* 2 ' > gone; do sleep 0.05; done"
    at = lines.index(consume)
    script = [*lines[:at], *background, *lines[at + 1 : -1], until, lines[-1]]
    script += ["kill $process", "wait $process"]
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    with running_mosquitto(tmp_path / "mosquitto") as broker:
        text = "\n".join(script).replace("localhost:1883", broker.place)
        text = text.replace("mosquitto_pub", f"mosquitto_pub -p {broker.port}")
        _, said = shell.run(text, tmp_path)
    assert "2 rows learned" in said
    assert said.splitlines()[-2].split()[:4] == ["mqtt/dualstream-heat", "2", "2", "0"], said

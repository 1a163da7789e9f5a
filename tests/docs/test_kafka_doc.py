"""The commands of docs/guides/kafka.md, run as written against a broker and a server."""

import json
import re

import pytest

from tests.docs.documents import DOCUMENTS, Shell, session
from tests.tansu import running_tansu

LABEL = '{"event": "e18", "clicked": 1}'
NAME = "docs/guides/kafka.md"
# Tansu begins a group after half of the session timeout.
SHORT = "session.timeout.ms=1000\nheartbeat.interval.ms=200\n"


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    with shell.server:
        yield shell


def test_the_commands_run_as_written(shell, tmp_path):
    shown = json.dumps({"clicked": 1, "event": "e17", "site": "news", "price": 3.5})
    assert shown in DOCUMENTS[NAME]
    rows = [json.dumps({"clicked": n % 2, "event": f"e{n}", "site": "mail"}) for n in range(17)]
    with running_tansu(tmp_path / "log") as tansu:
        tansu.create("clicks", 2)
        tansu.send("clicks", [row.encode() for row in rows], key=b"ann")
        tansu.send("clicks", [shown.encode()], 1, key=b"bob")
        tansu.create("broken")
        tansu.send("broken", [None, b'{"site": "news"}'])
        for topic in ("views", "scores", "outcomes", "tenants", "payments"):
            tansu.create(topic)
        tansu.send("views", [b'{"event": "e18", "site": "news"}'])
        tansu.send("tenants", [b'{"tenant": "acme", "clicked": 1}'])
        tansu.send("payments", [b'{"card": "c17", "at": "2026-05-06T09:30:00Z"}'])
        assert LABEL in DOCUMENTS[NAME]
        tansu.send("outcomes", [LABEL.encode()])
        (tmp_path / "short").write_text(SHORT)
        script = session(DOCUMENTS[NAME]).replace("localhost:9092", tansu.brokers)
        script = script.replace("--until-end", f"--until-end --kafka @{tmp_path / 'short'}")
        answers, said = shell.run(script, tmp_path)
        (scored,) = tansu.messages("scores", 1)
    value = json.loads(scored.value())
    (documented,) = re.findall(r'{"id": "e18".*}', DOCUMENTS[NAME])
    assert value.keys() == json.loads(documented).keys()
    assert (scored.key(), value["id"], value["seq"]) == (b"e18", "e18", 18)
    sources, tombstone, unlabelled = answers
    assert {one["name"]: one["next"] for one in sources["sources"]} == {
        "kafka/clicks/0": 17,
        "kafka/clicks/1": 1,
    }
    assert "18 rows learned" in said and "exit code 1" in said
    assert "outcomes: 1 row learned" in said and "tenants: 1 row learned" in said
    assert "payments: 1 row observed" in said
    assert (tombstone["source"], tombstone["offset"]) == ("kafka/broken/0", 0)
    assert "tombstone" in tombstone["reason"] and "clicked" in unlabelled["reason"]

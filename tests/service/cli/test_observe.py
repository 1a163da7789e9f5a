"""`dualstream observe`: the requests and messages of `learn`, of another route."""

import httpx
import pytest
from typer.testing import CliRunner

from dualstream.client import Client
from dualstream.service.cli import app


@pytest.fixture
def requests(monkeypatch) -> list[httpx.Request]:
    """The requests of commands, whose first row is refused and whose repetition is a duplicate."""
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys = [one.headers["idempotency-key"] for one in requests]
        requests.append(request)
        observed = {"model": "m", "seq": 7, "count": 2, "learned": 0, "mistakes": None}
        observed |= {"loss": None, "duplicate": request.headers["idempotency-key"] in keys}
        errors = [{"index": 0, "line": 2, "pointer": "/x/at", "reason": "no time"}]
        return httpx.Response(200, json=observed | {"rejected": 1, "errors": errors})

    def connect(self: Client, proxy: str | None, **options) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(answer), **options)

    monkeypatch.setattr(Client, "_connect", connect)
    return requests


def test_files_are_observed_once(requests, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("card,at\na,x\nb,2026-01-01\nc,2026-01-02\n")
    first = CliRunner().invoke(app, ["observe", "m", str(path)])
    assert first.exit_code == 1, first.output
    assert first.stdout.replace("\n", "").endswith("rows.csv: 2 rows observed, 1 refused, seq 7")
    assert "line 2: /x/at: no time" in first.stderr
    again = CliRunner().invoke(app, ["observe", "m", str(path), "--json"])
    assert again.exit_code == 1 and '"learned":0' in again.stdout.replace(" ", "")
    again = CliRunner().invoke(app, ["observe", "m", str(path)])
    assert "nothing new, 1 chunk observed before" in again.stdout.replace("\n", "")
    assert {one.url.path for one in requests} == {"/models/m/observe"}
    assert len({one.headers["idempotency-key"] for one in requests}) == 1


def test_the_options_are_those_of_learn():
    learn, observe = (CliRunner().invoke(app, [name, "--help"]).stdout for name in CALLS)
    options = [text[text.index("Options") :] for text in (learn, observe)]
    assert options[0] == options[1] and "--skip" in options[0]


CALLS = ("learn", "observe")

"""The examples beat their baselines on small streams, read files, and have a page each."""

import io
import json
import re
import subprocess
import sys
from functools import partial
from importlib import import_module

import pytest
from rich.console import Console

from dualstream.client import BadInput, Client
from dualstream.service.codecs import parse_body
from dualstream.service.codecs.row_schema import RowSchema
from dualstream.solvers import resolve_spec
from dualstream.solvers.jit import DISABLED
from examples import churn, common, house_power
from examples.pages import NAMES, PAGES, PICTURES
from tests.docs.documents import DOCUMENTS, ROOT, session

many_rows = pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
# Rows of each run; the examples take several times as many.
ROWS = {
    "clicks": 2000,
    "card_fraud": 4000,
    "tickets": 1500,
    "maintenance": 2800,
    "demand": 2000,
    "bids": 1200,
    "churn": 2400,
    "moderation": 2000,
    "delivery": 1000,
    "house_power": 2000,
}
# What the report says besides the result.
SAID = {
    "clicks": r"The tenth of the impressions .* has \d+% of the clicks",
    "card_fraud": r"^[3-9] of the \d+ frauds of the day's \d+ payments are among",
    "tickets": r"the right one for (8[89]|9\d)\.\d% of the tickets",
    "maintenance": r"^([4-9]|\d\d) of \d+ failures were announced, \d\d hours before on average",
    "demand": r"intervals held (8[89]|9[01])\.\d% of the results",
    "bids": r"\d\d% of the auctions were won",
    "churn": r"^ +4 .* of 60$",
    "moderation": r"^  \d+ wrong flags in a day: back to version day-5",
    "delivery": r"Promises, mean minutes and missed: model [\d.]+ and ([4-9]|1[0-6])\.",
    "house_power": r"^Columns that have moved most",
}


def printed_by(name: str, server, *flags: str):
    printed = io.StringIO()
    example = import_module(f"examples.{name}")
    flags = ("--url", server.url, "--rows", str(ROWS[name]), *flags)
    return example.main(flags, Console(file=printed, width=200)), printed.getvalue()


@pytest.fixture
def client(shared_server):
    with Client(shared_server.url) as client:
        yield client
        for model in client.models():
            client.delete(model.id)


@many_rows
@pytest.mark.parametrize("name", NAMES)
def test_the_example_beats_its_baselines(name, shared_server, client, monkeypatch):
    # Months take the server up to a second.
    monkeypatch.setattr(churn, "MONTHS", 4)
    monkeypatch.setattr(churn, "DEARER_FROM", 2)
    result, printed = printed_by(name, shared_server)
    assert result.is_better and "NOT better" not in printed, printed
    assert result.sentence() == printed.splitlines()[-1]
    assert re.search(SAID[name], printed, re.MULTILINE), printed
    curves = list(result.chart.lines.values())
    assert len(curves) >= 2 and all(len(points) > 2 for points in curves)
    refused = [client.metrics(model.id)["rejected"] for model in client.models()]
    assert refused and not any(refused)
    if name == "churn":
        # The labels that were sent, and the default labels of all others.
        assert client.metrics("churn")["rows"] == ROWS[name]


def test_an_example_runs_by_itself(tmp_path):
    command = [sys.executable, "-m", "examples.house_power", "--rows", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0 and "Root mean square error" in done.stdout, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_an_example_reads_the_rows_that_it_writes(name, tmp_path):
    example = import_module(f"examples.{name}")
    file = tmp_path / "rows.csv"
    with pytest.raises(SystemExit):
        example.main(["--rows", "300", "--seed", "3", "--write", str(file)])
    made = list(example.made(300, 3))
    assert made == list(example.made(300, 3)) != list(example.made(300, 4))
    read = list(example.read(file))
    assert [list(row) for row in read] == [list(row) for row in made]
    if name == "house_power":
        return
    label = example.SPEC["columns"]["label"]
    if label in made[0]:
        assert [row[label] for row in read] == [row[label] for row in made]
    else:
        assert name == "bids"
        return
    parsed = parse_body(
        RowSchema(resolve_spec(example.SPEC)),
        None,
        json.dumps(read, default=str).encode(),
        labelled=True,
    )
    assert not parsed.errors and len(parsed.rows) == 300


def test_house_power_reads_the_file_of_uci(tmp_path):
    (tmp_path / "file").write_text(
        '"date","Appliances","lights","T1","RH_1","rv1","rv2"\n'
        '"2016-01-11 17:00:00","60","30","19.89","47.6","13.3","13.3"\n'
        '"2016-01-11 17:10:00","50","30","","46.7","18.6","18.6"\n'
    )
    first, second = house_power.read(tmp_path / "file")
    assert (first["T1"], first["Appliances_before"]) == ("19.89", "NA")
    assert (second["T1"], second["Appliances_before"], second["Appliances"]) == ("", "60", "50")


def test_what_cannot_run_ends_with_one_line(tmp_path, capsys, monkeypatch):
    def ends(code: int, message: str, *flags: str) -> None:
        with pytest.raises(SystemExit) as ended:
            import_module("examples.demand").main(flags, Console(quiet=True))
        [line] = capsys.readouterr().err.splitlines()
        assert ended.value.code == code and message in line, line

    file = tmp_path / "file"
    file.write_text("at,shop\n2024-05-06,s1\n")
    missing = "file, line 2: no column units, promotion, holiday, temperature"
    ends(2, missing, "--data", str(file))
    file.write_text("at,shop,promotion,holiday,temperature,units\n2024-05-06,s1,0,0,,many\n")
    wrong = "file, line 2: could not convert string to float: 'many'"
    ends(2, wrong, "--data", str(file))
    file.write_bytes("at,units\n".encode("utf-16"))
    ends(2, "file: no UTF-8 text; save it as CSV in UTF-8", "--data", str(file))
    absent = str(tmp_path / "absent" / "file")
    for flag in ("--data", "--write"):
        ends(2, f"{absent}: No such file or directory", flag, absent)
    with pytest.raises(SystemExit) as ended:
        import_module("examples.demand").main(["--picture", "demand.txt"])
    assert ended.value.code == 2
    wrong = "argument --picture: 'demand.txt' must end in .svg or .png"
    assert wrong in capsys.readouterr().err
    monkeypatch.setattr(common, "Client", partial(Client, patience_s=0.0))
    ends(4, "no answer: [Errno 111] Connection refused", "--url", "localhost:1")
    file.write_text("date,T1,RH_1\n2016-01-11 17:00:00,19.9,47\n")
    with pytest.raises(BadInput, match="file, line 2: no column Appliances"):
        list(house_power.read(file))


def test_every_example_has_a_page_with_its_output_and_its_picture():
    commands = session(DOCUMENTS["docs/start/examples.md"]).splitlines()
    assert commands == [f"python -m examples.{name}" for name in NAMES]
    overview = DOCUMENTS["docs/start/examples.md"]
    for name in NAMES:
        page, picture = PAGES[name].read_text(), PICTURES[name]
        assert f"]({picture.relative_to(ROOT / 'docs')})".replace("](", "](../") in page, name
        assert 2_000 < picture.stat().st_size < 60_000, name
        assert PAGES[name].name in overview, name
        assert len(page.splitlines()) <= 80, name
        example = import_module(f"examples.{name}")
        history = {"history": example.HISTORY} if hasattr(example, "HISTORY") else {}
        shown = re.search(r"```json\n(.*?)```", page, re.DOTALL).group(1)
        assert json.loads(shown) == example.SPEC | history, name
        output = re.search(r"<!-- output of the example -->\n```text\n(.*?)```", page, re.DOTALL)
        assert "The model is" in output.group(1) and "NOT better" not in output.group(1), name

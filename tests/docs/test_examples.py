"""The examples run on what they make up, read the files that they name, and tell the truth."""

import io
import json
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta

import numpy as np
import pytest
from rich.console import Console

from dualstream.client import Client
from dualstream.service.codecs import parse_body
from dualstream.service.codecs.row_schema import RowSchema
from dualstream.solvers import resolve_spec
from dualstream.solvers.jit import DISABLED
from examples import card_fraud, electricity, sensors, spam
from tests.docs.documents import DOCUMENTS, ROOT, session

DAY = timedelta(days=1)
many_rows = pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")


def said_by(example, server, *flags: str) -> str:
    said = io.StringIO()
    example.main(["--url", server.url, *flags], Console(file=said, width=200))
    return said.getvalue()


@pytest.fixture
def client(shared_server):
    with Client(shared_server.url) as client:
        before = {model.id for model in client.models()}
        yield client
        for model in client.models():
            if model.id not in before:
                client.delete(model.id)


@many_rows
def test_electricity_finds_the_link_that_opens(shared_server, client):
    said = said_by(electricity, shared_server, "--rows", "5000")
    since = client.metrics("electricity")["since_start"]
    last = since["baselines"]["last_label"]["error_rate"]
    assert f"{since['error_rate']:.1%}, majority class" in said and since["error_rate"] < last
    assert "below the better baseline" in said
    rose = [event.get("rows") for event in client.timeline("electricity").events if event["rising"]]
    assert {"at.hour.sin", "nswprice"} <= {
        weight.name
        for weight in client.weights("electricity-windows", member="sliding", top=50).weights
    }
    assert rose and rose[0] > 2000 and f"{rose[0]:,}" in said
    windows = client.members("electricity-windows").members
    assert re.findall(r"^  (infinite|exponential|sliding) +\S+% errors", said, re.MULTILINE) == [
        window.name for window in windows
    ]


@many_rows
def test_spam_learns_no_label_before_it_comes(shared_server, client):
    said = said_by(spam, shared_server, "--rows", "1000", "--delay", "150")
    served = client.metrics("spam")
    rows = re.findall(r"^ +([\d,]+) +(\d+) +(\d+) of (\d+) +(\d+) of (\d+)$", said, re.MULTILINE)
    came, waiting, passed, spams, blocked, hams = (int(got) for got in rows[-1])
    assert came == spams + hams == 900 and 75 <= waiting <= 225
    assert served["samples"] == 1000 - waiting
    assert client.metrics("spam-labels-at-once")["samples"] == 1000
    late = served["since_start"]["error_rate"]
    at_once = client.metrics("spam-labels-at-once")["since_start"]["error_rate"]
    assert f"{late:.2%}; calling nothing spam" in said and f"{at_once:.2%} (model" in said
    # What was served wrongly, and has its label by now, is no more than all that was.
    assert 0 < passed < spams / 2 and blocked < hams / 20


@many_rows
def test_sensors_go_on_without_the_one_that_fails(shared_server, client):
    said = said_by(sensors, shared_server, "--rows", "2000")
    since = client.metrics("sensors")["since_start"]
    assert since["rmse"] < min(base["rmse"] for base in since["baselines"].values())
    assert "below the better baseline" in said and client.metrics("sensors")["rejected"] == 0
    made = list(sensors.made(2000, 0))
    silent = [sum(row[name] in ("", "NA") for name in row) for row in made]
    assert (
        made[1600]["T3"] != "NA" == made[1601]["T3"] and 0.1 < np.mean(np.array(silent) > 0) < 0.5
    )
    # The server makes the features of the time.
    columns = client.get("sensors").spec["columns"]
    assert columns["missing"] == ["", "NA"] and columns["types"]["date"]["kind"] == "time"
    # The past of three columns is worth something, and the report says how much.
    plain = client.metrics(sensors.PLAIN)["since_start"]["rmse"]
    assert since["rmse"] < plain and f"it is {plain:.2f} in place of {since['rmse']:.2f}" in said
    sent = sensors.as_csv(made[:2]).stream.read().decode().splitlines()
    assert sent[0].startswith("date,Appliances_before,lights,T_out") and len(sent) == 3


@many_rows
def test_card_fraud_is_found_by_the_past_of_cards_and_terminals(shared_server, client):
    said = said_by(card_fraud, shared_server, "--rows", "4000")
    ours, plain = (client.metrics(model) for model in (card_fraud.MODEL, card_fraud.PLAIN))
    precisions = [metrics["rolling"]["average_precision"] for metrics in (ours, plain)]
    assert precisions[0] > 1.5 * precisions[1]
    row = f"   4,000 {ours['samples']:8,} {precisions[0]:14.3f} {precisions[1]:9.3f}"
    assert row in said.splitlines()
    # A label is sent before the payments of the first request after its seven days.
    made = list(card_fraud.made(4000, 0))
    last = made[4000 - card_fraud.PER_REQUEST]["at"] - card_fraud.DELAY
    assert ours["samples"] == plain["samples"] == sum(row["at"] <= last for row in made)
    alerts = re.findall(r"^ +[\d.]+   \d\d:\d\d .* (fraud|-)$", said, re.MULTILINE)
    hits, frauds, payments = re.search(
        r"(\d+) of the (\d+) frauds of the day's (\d+)", said
    ).groups()
    assert len(alerts) == 10 and alerts.count("fraud") == int(hits) >= int(frauds) / 2
    assert sum(row["at"].date() == made[-1]["at"].date() - DAY for row in made) == int(payments)


def test_an_example_runs_by_itself():
    done = subprocess.run(
        [sys.executable, "-m", "examples.spam", "--rows", "200"],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0 and "Errors as served" in done.stdout, done.stderr
    assert session(DOCUMENTS["docs/start/examples.md"]).split("\n")[:-1] == [
        f"python -m examples.{name}" for name in ("electricity", "spam", "sensors", "card_fraud")
    ]
    # The same rows each time.
    assert list(spam.made(50, 3)) == list(spam.made(50, 3)) != list(spam.made(50, 4))


ELEC2 = "date,day,period,nswprice,nswdemand,vicprice,vicdemand,transfer,class\n"
PAYMENTS = "tx,at,card,terminal,amount,fraud\n"
ENERGY = '"date","Appliances","lights","T1","RH_1","rv1","rv2"\n'
FILES = {
    # As River has it, and as OpenML's file becomes one of CSV.
    ELEC2 + "0,2,0.021277,0.051699,0.415055,0.003467,0.422915,0.414912,UP\n": (
        electricity,
        [{"day": "2", "period": "0.021277", "nswprice": "0.051699", "class": "UP"}],
    ),
    ELEC2 + "0.0,b'7',1.0,0.05,0.4,0.003,0.42,0.41,b'DOWN'\n": (
        electricity,
        [{"day": "7", "period": "1.0", "vicdemand": "0.42", "class": "DOWN"}],
    ),
    "ham\tOk lar...\nspam\tWIN £900 to 09061701461!\n": (
        spam,
        [({"text": "Ok lar..."}, 0), ({"text": "WIN £900 to 09061701461!"}, 1)],
    ),
    PAYMENTS + "t1,2024-05-06T09:00:00,17,s1,12.5,1\n": (
        card_fraud,
        [{"tx": "t1", "at": datetime(2024, 5, 6, 9), "card": "17", "amount": "12.5", "fraud": 1}],
    ),
    ENERGY
    + '"2016-01-11 17:00:00","60","30","19.89","47.6","13.3","13.3"\n'
    + '"2016-01-11 17:10:00","50","30","","46.7","18.6","18.6"\n': (
        sensors,
        [
            {"date": "2016-01-11 17:00:00", "T1": "19.89", "Appliances_before": "NA"},
            {"T1": "", "RH_1": "46.7", "Appliances_before": "60", "Appliances": "50"},
        ],
    ),
}


@pytest.mark.parametrize("text", FILES, ids=["elec2", "elec2-openml", "sms", "payments", "energy"])
def test_the_files_that_are_named_are_read(tmp_path, text):
    example, expected = FILES[text]
    (tmp_path / "file").write_text(text)
    results = list(example.read(tmp_path / "file"))
    if example is spam:
        assert results == expected
        return
    for row, got in zip(results, expected, strict=True):
        assert {name: row.get(name) for name in got} == got
    spec = sensors.SPEC if example is sensors else example.COLUMNS
    body = json.dumps(results, default=str).encode()
    parsed = parse_body(RowSchema(resolve_spec(spec)), None, body, labelled=True)
    assert not parsed.errors and len(parsed.rows) == len(results)
    names = {name for _, name in parsed.rows.names}
    assert names and not {"date", "class", "Appliances", "tx", "fraud", "rv1", "rv2"} & names

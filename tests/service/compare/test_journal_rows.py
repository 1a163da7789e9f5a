"""`dualstream compare --model`: the rows that a journal still has, and what is said of them."""

import json

import pytest
from typer.testing import CliRunner

from dualstream.service.cli import app
from tests.service.compare.support import samples, written
from tests.service.features.versions.support import back, settled, take

ROWS = 300
SPEC = {
    "algorithm": "sgd",
    "labels": ["no", "yes"],
    "columns": {
        "label": "label",
        "id": "number",
        "types": {"x": "number", "color": "category", "member": "boolean"},
        "unknown": "ignore",
    },
}


@pytest.fixture(autouse=True)
def light(monkeypatch):
    """Without peers."""
    monkeypatch.setattr("dualstream.service.compare.peers.find_spec", lambda name: None)


def compare(*options: str) -> dict:
    done = CliRunner().invoke(app, ["compare", *options, "--json"])
    assert done.exit_code == 0, done.output
    result: dict = json.loads(done.stdout)
    return result


def learned(client, spec: dict, rows: list[dict]) -> None:
    assert client.put("/models/m", json=spec).status_code == 201
    for first in range(0, len(rows), 50):
        answer = client.post("/models/m/learn", json=rows[first : first + 50])
        assert answer.json()["rejected"] == 0, answer.text
        settled(client)


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_the_rows_are_those_of_the_file_that_was_learned(serve, store, tmp_path, task):
    spec, rows = {**SPEC, "task": task}, samples(ROWS, task=task)
    if task == "multiclass":
        del spec["labels"]
    client = serve(store=store)
    learned(client, spec, rows)
    before = client.get("/models/m?digest=true").json()
    result = compare("--model", "m", "--store", store, "--with", '{"algorithm": "perceptron"}')
    of_file = compare(
        *(written(tmp_path, rows), "--columns", json.dumps(spec)),
        *("--with", '{"algorithm": "perceptron"}'),
    )
    assert result["rows"] == ROWS and result["file"] == "model m"
    figures = [(one["name"], one["error_rate"]) for one in result["contestants"]]
    assert figures == [(one["name"], one["error_rate"]) for one in of_file["contestants"]]
    served = client.get("/models/m/metrics").json()["since_start"]["error_rate"]
    assert figures[0][1] == pytest.approx(served)
    assert result["notes"][0] == (
        "the journal of 'm' has 300 labelled rows, of records 1 to 300; peers get them as they"
        " are encoded"
    )
    assert result["run"]["peers_get"] == "encoded rows"
    assert client.get("/models/m?digest=true").json() == before


def test_a_trimmed_journal_names_the_setting(serve, store):
    client = serve(store=store, snapshot_every=50)
    learned(client, SPEC, samples(ROWS))
    notes = compare("--model", "m", "--store", store)["notes"]
    begin = [note for note in notes if "the journal begins at seq" in note]
    assert begin and "not at 1: a server keeps more with KEEP_RECORDS" in begin[0], notes


def test_rows_with_late_labels_count_and_revised_ones_are_left_out(serve, store):
    client = serve(store=store)
    learned(client, SPEC, samples(100))
    take(client, name="before")
    late = [row | {"number": f"n{at}"} for at, row in enumerate(samples(20, seed=1))]
    answer = client.post("/models/m/predict?remember=true", json=late)
    assert answer.status_code == 200, answer.text
    first = [{"id": row["number"], "y": row["label"]} for row in late]
    answer = client.post("/models/m/labels?revise=true", json={"labels": first})
    assert answer.status_code == 200, answer.text
    second = [{"id": "n3", "y": "no" if late[3]["label"] == "yes" else "yes"}]
    answer = client.post("/models/m/labels?revise=true", json={"labels": second})
    assert answer.status_code == 200, answer.text
    assert back(client, version="before").status_code == 200
    result = compare("--model", "m", "--store", store)
    assert result["rows"] == 120
    assert "rows that revise the label of an earlier row are left out: 1" in result["notes"]
    assert "rollbacks are left out, and rows that they took back count: 1" in result["notes"]


def test_what_cannot_be_read_ends_with_2(serve, store, tmp_path):
    client = serve(store=store)
    learned(client, SPEC, samples(20))
    cases = {
        ("--model", "m", "--store", store): "has 20 rows; a comparison needs 50",
        ("--model", "n", "--store", store): "'n'",
        ("--model", "m", "--store", f"sqlite:///{tmp_path}/no.db"): "no store at",
        ("--model", "m", "--store", store, "--label", "y"): "leave out the file, --format",
        ("rows.csv", "--model", "m"): "leave out the file, --format",
        (): "give a file, or --model ID",
    }
    for options, reason in cases.items():
        done = CliRunner().invoke(app, ["compare", *options])
        assert done.exit_code == 2 and reason in done.stderr, (options, done.output)

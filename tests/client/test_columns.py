"""Rows of models with `columns`: dicts and DataFrames give the model that files give."""

import json
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest

from dualstream.client import BadInput, Client, Refused
from dualstream.client.row_values import sample_line
from dualstream.solvers.estimators.sklearn import DualstreamClassifier
from tests.service.codecs.flat_tables import COLUMNS, CROSSES, SPEC, as_arrow, as_csv, generated
from tests.service.codecs.support import ARROW, CSV, NDJSON

LINEAR = SPEC | {"algorithm": "sgd", "scaling": "balanced"}
ROLES = ["clicked", "event", "cost"]


@pytest.fixture
def server(shared_server):
    with Client(shared_server.url) as client:
        before = {model.id for model in client.models()}
        yield client
        for model in client.models():
            if model.id not in before:
                client.delete(model.id)


def as_table(rows):
    """A DataFrame of the types that pandas users have: times, nullable booleans, categories."""
    table = pd.DataFrame(rows)
    table["at"] = pd.to_datetime(table["at"], utc=True, format="ISO8601")
    table["member"] = table["member"].astype("boolean")
    table["zip"] = table["zip"].astype("category")
    return table


@pytest.mark.parametrize("seed", range(3))
def test_dicts_tables_and_files_give_the_same_model(server, seed):
    rows = generated(seed, 120)
    table = as_table(rows)
    timed = [row | {"at": datetime.fromisoformat(row["at"])} for row in rows]
    for name, case in {"dicts": timed, "texts": rows, "table": table}.items():
        server.create(name, LINEAR, replace=True)
        assert server.learn(name, case, rows_per_request=50).learned == 120
    server.create("apart", LINEAR, replace=True)
    server.learn("apart", table, "clicked", weight="cost", ids="event")
    files = {
        "json": ("application/json", json.dumps(rows).encode()),
        "ndjson": (NDJSON, "\n".join(map(json.dumps, rows)).encode()),
        "csv": (CSV, as_csv(rows)),
        "arrow": (ARROW, as_arrow(rows)),
    }
    for name, (kind, body) in files.items():
        server.create(name, LINEAR, replace=True)
        path = f"/models/{name}/learn"
        sent = server._http.post(path, content=body, headers={"content-type": kind})
        assert sent.json()["learned"] == 120
    names = ["dicts", "texts", "table", "apart", *files]
    assert len({server.get(name, digest=True).state_digest for name in names}) == 1
    again = server.learn("table", table, rows_per_request=50)
    assert again.learned == 0 and again.duplicate_rows == 120

    unlabelled = [{n: v for n, v in row.items() if n not in ROLES} for row in timed]
    server.create("even", LINEAR, replace=True)
    server.learn("even", table.drop(columns="cost"))
    scores = server.predict("even", table).scores
    for case in (timed, unlabelled):
        assert server.predict("even", case).scores == scores
    assert server.predict("even", unlabelled[3]).score == scores[3]
    mine = {name: COLUMNS[name] for name in ("ignore", "types")} | {
        "missing": ["", "NA", "NaN", None]
    }
    estimator = DualstreamClassifier(
        algorithm="sgd", scaling="balanced", columns=mine, crosses=CROSSES
    )
    x = table.drop(columns=ROLES)
    estimator.partial_fit(x, table["clicked"], classes=[0, 1])
    assert estimator.decision_function(x).tolist() == scores


def test_lists_objects_and_dates_are_columns(server):
    columns = {"types": {"born": {"kind": "time", "parts": ["weekday"]}, "at": "time"}}
    server.create("nested", {"algorithm": "sgd", "columns": columns}, replace=True)
    row = {
        "y": 1,
        "born": date(2024, 5, 6),
        "at": np.datetime64("2024-05-06T09:30", "ns"),
        "tags": ["a", "b", None],
        "user": {"age": np.int64(39), "town": {"name": "Oslo"}, "codes": np.array(["x", "y"])},
        "gone": pd.NaT,
        "id": 2**60 + 1,
    }
    assert server.learn("nested", row).learned == 1
    names = {one.name for one in server.weights("nested", top=50).weights}
    assert names == {
        "born.weekday=mon",
        "at.hour.sin",
        "at.hour.cos",
        "at.weekday=mon",
        "tags=a",
        "tags=b",
        "user.age",
        "user.town.name=Oslo",
        "user.codes=x",
        "user.codes=y",
    }
    # The id keeps its 19 digits, so the row is a duplicate, and the next number is not.
    assert server.learn("nested", [row]).duplicate_rows == 1
    assert server.learn("nested", [row | {"id": 2**60 + 2}]).learned == 1
    served = server.predict_and_remember("nested", [row | {"id": "late"}], ["late"])
    assert served.remembered == 1 and server.learn_labels("nested", {"late": 0}).learned == 1


def test_a_bad_cell_is_refused_alone_and_a_row_needs_its_label(server):
    server.create("cells", LINEAR, replace=True)
    rows = generated(7, 4)
    rows[1]["price"] = "cheap"
    del rows[2]["clicked"]
    answer = server.learn("cells", rows)
    assert (answer.learned, answer.rejected) == (2, 2)
    assert [error["index"] for error in answer.errors] == [1, 2]
    assert "'cheap'" in answer.errors[0]["reason"]
    assert "label column 'clicked' is missing" in answer.errors[1]["reason"]
    server.create("plain", {"algorithm": "sgd"}, replace=True)
    with pytest.raises(Refused, match="label `y` is missing"):
        server.learn("plain", {"a": 1.0})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([1.0, float("inf")], "feature 'a' is not a finite number"),
        ({"b": [float("-inf")]}, "feature 'a.b' is not a finite number"),
        ({"b": b"x"}, "feature 'a.b': bytes is not a number, bool or text"),
        ({"b": {1.5: 2}}, "a feature's name must be a text, got float"),
        ({1: 2, "1": 3}, "two features have one name"),
        ([np.timedelta64(1, "s")], "feature 'a': timedelta64 is not a number"),
        (pd.Period("2024-05"), "feature 'a': Period is not a number"),
    ],
)
def test_values_inside_of_lists_and_objects_are_not_guessed(value, why):
    with pytest.raises(BadInput) as refused:
        sample_line({"x": {"a": value}}, 3, [])
    assert f"row 3: {why}" in str(refused.value)


def test_times_keep_their_zone_and_their_microseconds():
    times = [
        datetime(2024, 5, 6, 9, 30, 0, 123456, tzinfo=UTC),
        pd.Timestamp("2024-05-06T09:30+02:00"),
        np.datetime64("NaT"),
    ]
    line = sample_line({"x": {"at": times}}, nested=[])
    expected = ["2024-05-06T09:30:00.123456+00:00", "2024-05-06T09:30:00+02:00", None]
    assert json.loads(line)["x"]["at"] == expected


def test_a_row_of_lists_in_lists_has_an_end():
    deep: list = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(BadInput, match="nested too deeply"):
        sample_line({"x": {"a": deep}}, nested=[])

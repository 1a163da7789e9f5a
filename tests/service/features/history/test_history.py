"""Columns from the past of a key, over HTTP: point in time, once, and the same after a restart."""

import json
import math

import numpy as np
import pytest

from dualstream.service.codecs import as_batch, parse_body
from tests.service.conftest import assert_problem
from tests.service.support import bits, loaded, replica_of, scraped

NOW = 1.75e9
DAY = 86_400.0
SPEC = {
    "columns": {
        "label": "fraud",
        "id": "tx",
        "types": {"at": "time", "card": "category", "shop": "ignore", "amount": "number"},
    },
    "history": [
        {
            "by": "card",
            "time": "at",
            "of": "amount",
            "stats": ["count", "mean", "difference", "since", "last"],
            "half_life": ["1h", "1d"],
        },
        {"by": "shop", "time": "at", "stats": ["count", "label_mean"], "half_life": "7d"},
        {"by": ["card", "shop"], "stats": ["count"], "half_life": 2},
    ],
}
HOUR, WEEK = 3600.0, 7 * DAY


def event(number: int, **more) -> dict:
    """Rows of a few cards and shops, some late, some without an amount or a shop."""
    at = NOW + 400 * number - (5000 if number % 11 == 3 else 0)
    row = {"at": at, "card": f"c{number % 3}", "shop": number % 4, "amount": (number % 7) * 10.0}
    if number % 13 == 5:
        del row["amount"]
    if number % 17 == 8:
        del row["shop"]
    return row | more


class Past:
    """The definition: sums over all rows that have entered."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.labels: list[tuple[dict, float]] = []

    def enter(self, row: dict, label: int | None = None) -> None:
        self.rows.append(row)
        if label is not None:
            self.labels.append((row, label))

    def columns(self, row: dict) -> dict[str, float]:
        """Columns of the next row, without zeros."""
        columns = {}
        if "amount" in row:
            columns |= self._of_card(row)
        elif "card" in row:
            columns |= {k: x for k, x in self._of_card(row).items() if "difference" not in k}
        if "shop" in row:
            mine = [one for one in self.rows if one.get("shop") == row["shop"]]
            columns["shop.count.7d"] = math.log1p(decayed(mine, row["at"], WEEK))
            columns["shop.label_mean.7d"] = self._share(row)
            both = [one for one in mine if one["card"] == row["card"]]
            n = sum(2.0 ** -((len(both) - 1 - at) / 2) for at in range(len(both)))
            columns["card*shop.count.2"] = math.log1p(n)
        return {name: x for name, x in columns.items() if x is not None and x != 0.0}

    def _of_card(self, row: dict) -> dict[str, float | None]:
        mine = [one for one in self.rows if one["card"] == row["card"] and "amount" in one]
        if not mine:
            return {}
        newest = max(mine, key=lambda one: (one["at"], self.rows.index(one)))
        columns = {
            "card.amount.last": newest["amount"],
            "card.since": math.log1p(max(0.0, row["at"] - newest["at"])),
        }
        for text, half_life in (("1h", HOUR), ("1d", DAY)):
            to = max(row["at"], newest["at"])
            weights = [2.0 ** -((to - one["at"]) / half_life) for one in mine]
            mean = sum(w * one["amount"] for w, one in zip(weights, mine, strict=True))
            mean /= sum(weights)
            columns[f"card.count.{text}"] = math.log1p(sum(weights))
            columns[f"card.amount.mean.{text}"] = mean
            columns[f"card.amount.difference.{text}"] = row.get("amount", math.nan) - mean
        return columns

    def _share(self, row: dict) -> float | None:
        if not self.labels:
            return None
        of_all = sum(label for _, label in self.labels) / len(self.labels)
        labelled = [(one, label) for one, label in self.labels if one.get("shop") == row["shop"]]
        # Label statistics decay to the newest row of the shop, of whatever kind.
        rows = [one["at"] for one in self.rows if one.get("shop") == row["shop"]]
        to = max([row["at"], *rows])
        weights = [2.0 ** -((to - one["at"]) / WEEK) for one, _ in labelled]
        mine = sum(w * label for w, (_, label) in zip(weights, labelled, strict=True))
        return (mine + of_all) / (sum(weights) + 1.0)


def decayed(rows: list[dict], at: float, half_life: float) -> float:
    to = max([at, *(one["at"] for one in rows)])
    return sum(2.0 ** -((to - one["at"]) / half_life) for one in rows)


@pytest.fixture
def client(serve, store):
    client = serve(store=store)
    answer = client.put("/models/m", json=SPEC)
    assert answer.status_code == 201, answer.text
    return client


def shown(client, row: dict, model: str = "m") -> dict[str, float]:
    """The history columns of a row, as the learner would see them next."""
    served_model = client.app._registry.find(model)
    parsed = parse_body(
        served_model.row_schema, "application/json", json.dumps(row).encode(), labelled=False
    )
    served = served_model.replica.learner.as_served(as_batch([parsed.rows]))
    names = served_model.replica.names
    columns = {names.get(int(j)): x for j, x in zip(served.indices, served.values, strict=True)}
    return {name: x for name, x in columns.items() if name and ("count" in name or name in KEPT)}


KEPT = {"card.since", "card.amount.last", "shop.label_mean.7d"}
KEPT |= {f"card.amount.{stat}.{h}" for stat in ("mean", "difference") for h in ("1h", "1d")}


def learn(client, *rows: dict, **headers):
    answer = client.post("/models/m/learn", json=list(rows), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def observe(client, *rows: dict, **headers):
    answer = client.post("/models/m/observe", json=list(rows), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_columns_are_those_of_the_definition(client):
    past, number = Past(), 0

    def check():
        for probe in (number, number + 1, number + 2):
            row = event(probe)
            assert shown(client, row) == pytest.approx(past.columns(row), rel=1e-9)

    for step in range(12):
        rows = [event(number + n) for n in range(1 + step % 4)]
        number += len(rows)
        if step % 3 == 1:
            assert observe(client, *rows)["count"] == len(rows)
            labels = [None] * len(rows)
        else:
            labels = [(number + n) % 5 == 0 for n in range(len(rows))]
            learned = learn(client, *(r | {"fraud": y} for r, y in zip(rows, labels, strict=True)))
            assert learned["learned"] == len(rows)
        for row, label in zip(rows, labels, strict=True):
            past.enter(row, None if label is None else int(label))
        check()
    # Rows of weight 0 and refused rows do not enter.
    learn(
        client, event(number, fraud=1, weight=0), event(number, fraud="?"), event(number, fraud=0)
    )
    past.enter(event(number), 0)
    observe(client, event(number, weight=0), event(number + 1, weight=2))
    past.enter(event(number + 1))
    waiting = event(number + 2, tx="w", weight=0)
    assert client.post("/models/m/predict?remember=true", json=waiting).json()["remembered"] == 1
    check()
    assert client.post("/models/m/labels", json={"id": "w", "y": 1}).json()["learned"] == 1
    check()


def test_state_is_a_function_of_the_journal(client, store):
    for number in range(40):
        if number % 4 == 1:
            observe(client, event(number))
        elif number % 4 == 2:
            row = event(number, tx=f"t{number}")
            predicted = client.post("/models/m/predict?remember=true", json=row)
            assert predicted.json()["remembered"] == 1
        else:
            learn(client, event(number, fraud=number % 2))
    labels = [{"id": f"t{number}", "y": number % 3 == 0} for number in range(2, 40, 8)]
    assert client.post("/models/m/labels", json={"labels": labels}).json()["learned"] == 5
    live = bits(replica_of(client))
    assert live == bits(loaded(store))
    assert replica_of(client).learner.observed == 20


def test_a_late_label_is_learned_with_the_columns_as_served(client):
    for number in range(9):
        learn(client, event(number, fraud=number % 2))
    row = event(10, tx="late")
    served = shown(client, row)
    answer = client.post("/models/m/predict?remember=true", json=row).json()
    assert answer["remembered"] == 1
    learner = replica_of(client).learner
    seen: list = []
    inner = learner._learner.learn
    learner._learner.learn = lambda batch: seen.append(batch) or inner(batch)
    for number in range(11, 15):
        observe(client, event(number))
    answer = client.post("/models/m/labels", json={"id": "late", "y": 1}).json()
    assert answer["learned"] == 1
    names = replica_of(client).names
    columns = {names.get(int(j)): x for j, x in zip(seen[-1].indices, seen[-1].values, strict=True)}
    assert {name: columns.get(name) for name in served} == served
    # The label has entered the statistics of its shop, and the row has not entered again.
    assert int(replica_of(client).capture().arrays["learner.history.totals"][0]) == 10


def test_a_revised_label_takes_the_place_of_the_old_one(client, serve, store):
    past, clients = Past(), [client, serve(store=store)]
    rows = {f"t{number}": event(number) for number in range(24)}
    for tx, row in rows.items():
        past.enter(row)
        client.post("/models/m/predict?remember=true", json=row | {"tx": tx})
    last = dict.fromkeys(rows, 0)
    for turn, sent in enumerate(([*rows], [*rows][::3], [*rows][::2], [*rows][::6])):
        last |= {tx: (len(tx) + turn) % 2 for tx in sent}
        body = {"labels": [{"id": tx, "y": last[tx]} for tx in sent]}
        answer = clients[turn % 2].post("/models/m/labels?revise=true", json=body).json()
        assert answer["rejected"] == 0
    past.labels = [(row, last[tx]) for tx, row in rows.items()]
    clients[1].post("/models/m/learn", json=event(24, fraud=1))
    past.enter(event(24), 1)
    seq = replica_of(clients[1]).seq
    for one in clients:
        one.get(f"/models/m/predict?x=&min_seq={seq}")
        for number in range(25, 30):
            assert shown(one, event(number)) == pytest.approx(past.columns(event(number)), rel=1e-9)
        assert one.get("/models/m/metrics").json()["rows"] == 25
        assert bits(replica_of(one)) == bits(loaded(store))


def test_a_row_that_waits_enters_once(client):
    row = event(1, tx="a")
    for stored in (1, 0):
        answer = client.post("/models/m/predict?remember=true", json=row).json()
        assert (answer["remembered"], replica_of(client).seq) == (stored, 1)
    client.post("/models/m/labels", json={"id": "a", "y": 1})
    again = client.post("/models/m/predict?remember=true", json=row).json()
    assert (again["remembered"], replica_of(client).seq) == (0, 2)


def test_observed_rows_are_observed_once(client):
    first = observe(client, event(1), event(2), **{"idempotency-key": "k"})
    again = observe(client, event(1), event(2), **{"idempotency-key": "k"})
    assert (first["count"], first["duplicate"], again["duplicate"]) == (2, False, True)
    assert replica_of(client).seq == 2
    assert observe(client, event(3, tx="a"))["count"] == 1
    doubled = observe(client, event(3, tx="a"), event(4, tx="b"))
    assert (doubled["count"], [one["index"] for one in doubled["duplicates"]]) == (1, [0])
    # Ids of observed rows are a set of their own.
    assert learn(client, event(3, tx="a", fraud=1))["learned"] == 1
    source = {"dualstream-source": '"topic";from=0;to=1;first'}
    counts = [observe(client, event(5), event(6), **source) for _ in range(2)]
    assert [one["duplicate"] for one in counts] == [False, True]
    assert replica_of(client).learner.observed == 6


def test_rows_with_classes_are_observed_under_keys(client, serve, store):
    client.delete("/models/m")
    assert client.put("/models/m", json=SPEC | {"task": "multiclass"}).status_code == 201
    sent = [(observe, event(0)), (learn, event(1, fraud="a")), (observe, event(2, tx="a"))]
    sent += [(learn, event(3, fraud="b")), (learn, event(4, fraud="a"))]
    keys = [{"idempotency-key": f"k{number}"} for number in range(len(sent))]
    first = [send(client, row, **key) for (send, row), key in zip(sent, keys, strict=True)]
    assert [one["learned"] for one in first] == [0, 1, 0, 1, 1]
    # Another server learns the journal at once, and has the same answers.
    other = serve(store=store)
    for one in (client, other):
        again = [send(one, row, **key) for (send, row), key in zip(sent, keys, strict=True)]
        assert [one | {"duplicate": False} for one in again] == first
    assert bits(replica_of(client)) == bits(replica_of(other))


def test_a_row_with_another_content_under_an_id_is_refused(client):
    observe(client, event(3, tx="a"))
    answer = observe(client, event(4, tx="a"), event(5))
    assert (answer["count"], answer["rejected"]) == (1, 1)
    assert answer["errors"][0]["pointer"] == "/0/tx"


@pytest.mark.parametrize("kind", ["application/x-ndjson", "text/csv"])
def test_other_formats_enter_the_same(client, serve, kind):
    # A body of this length is read by kernels.
    numbers = [number for number in range(60) if number % 13 != 5 and number % 17 != 8]
    rows = [event(number, weight=number % 3) for number in numbers]
    observe(client, *rows)
    json_state = bits(replica_of(client))
    assert client.put("/models/n", json=SPEC).status_code == 201
    if kind == "text/csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    else:
        lines = [json.dumps(row) for row in rows]
    answer = client.post(
        "/models/n/observe", content="\n".join(lines), headers={"content-type": kind}
    )
    assert answer.json()["count"] == len(rows), answer.text
    other = bits(replica_of(client, "n"))
    mine = [name for name in other if name.startswith("learner.history.")]
    assert mine and all(other[name] == json_state[name] for name in mine)


def test_bad_rows_are_refused(client):
    for row, reason in (
        (event(1, at=(NOW + 20 * 365 * DAY)), "more than a day ahead"),
        (event(1) | {"card.since": 1.0}, "is computed from the history"),
        (event(1, card=["a", "b"]), "must be a category"),
        (event(1, at="yesterday"), "must be a time"),
        (event(1, shop={"a": 1}), "must be one value"),
    ):
        for route in ("observe", "learn"):
            answer = client.post(f"/models/m/{route}", json=row | {"fraud": 1})
            assert answer.status_code == 422, (row, answer.text)
            assert reason in answer.json()["errors"][0]["reason"]
    assert replica_of(client).seq == 0


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_an_observed_integer_that_loses_digits_is_refused(client, kind):
    body = json.dumps(event(1, amount=2**53 + 1))
    for route in ("observe", "predict"):
        answer = client.post(f"/models/m/{route}", content=body, headers={"content-type": kind})
        problem = assert_problem(answer, 422, "invalid-rows")
        assert "loses digits" in problem["errors"][0]["reason"]
        assert problem["errors"][0]["pointer"] == "/amount"


def test_a_request_whose_ids_are_all_taken_is_refused(client):
    observe(client, event(3, tx="a"))
    answer = client.post("/models/m/observe", json=event(4, tx="a"))
    assert_problem(answer, 422, "invalid-rows")
    assert answer.json()["errors"][0]["pointer"] == "/tx"
    assert replica_of(client).seq == 1


def test_groups_of_one_key_have_metrics_of_their_own(client):
    groups = [{"by": "card", "stats": "count", "half_life": rows} for rows in (3, 9)]
    client.put("/models/twice", json=SPEC | {"history": groups})
    client.post("/models/twice/learn", json=event(1, fraud=1))
    metrics = scraped(client)
    for name in ("card", "card #1"):
        assert metrics[f'dualstream_history_keys{{group="{name}",model="twice"}}'] == 1


def test_an_object_is_no_key_in_a_long_body(client):
    rows = [event(number, fraud=1) for number in range(60)]
    rows[7]["shop"] = {"a": 1}
    body = "\n".join(map(json.dumps, rows))
    headers = {"content-type": "application/x-ndjson"}
    answer = client.post("/models/m/learn", content=body, headers=headers).json()
    assert (answer["learned"], [one["index"] for one in answer["errors"]]) == (59, [7])


def test_a_model_without_history_observes_nothing(client):
    client.put("/models/plain", json={"columns": SPEC["columns"]})
    answer = client.post("/models/plain/observe", json=event(1))
    assert_problem(answer, 409, "nothing-to-observe")


def test_a_model_with_history_is_not_exported(client):
    learn(client, event(1, fraud=1))
    answer = client.get("/models/m/export?format=json")
    assert answer.status_code == 409
    assert "history" in answer.json()["detail"]


def test_an_explanation_shows_the_values_of_the_columns(client):
    learn(client, *(event(number, fraud=number % 2) for number in range(9)))
    answer = client.post("/models/m/predict?explain=true", json=event(9)).json()
    values = {one["name"]: one["value"] for one in answer["explanation"]["contributions"]}
    columns = shown(client, event(9))
    assert {name: values[name] for name in columns if name in values} and len(columns) > 5
    assert all(values[name] == x for name, x in columns.items() if name in values)


def test_columns_and_weights_show_the_history(client):
    learn(client, *(event(number, fraud=number % 2) for number in range(30)))
    names = [one["name"] for one in client.get("/models/m/columns").json()["columns"]]
    assert {"card.count.1d", "shop.label_mean.7d", "card*shop.count.2"} <= set(names)
    assert "shop" not in names
    metrics = scraped(client)
    assert metrics['dualstream_history_keys{group="card",model="m"}'] == 3
    assert metrics['dualstream_history_late_rows_total{group="card",model="m"}'] == 3
    assert np.isfinite(list(metrics.values())).all()

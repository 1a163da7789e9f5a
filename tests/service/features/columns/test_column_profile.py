"""GET /models/{id}/columns: the profile of the columns."""

import random
from itertools import pairwise

import pyarrow as pa
import pyarrow.ipc
import pytest

from tests.service.conftest import assert_problem

SPEC = {
    "columns": {"types": {"site": "category", "price": "number", "note": "text"}},
    "algorithm": "sgd",
}


def rows(n, seed=0, price=10.0, sites="abcd"):
    draw = random.Random(seed)
    results = []
    for _ in range(n):
        row = {"price": draw.gauss(price, 2.0), "site": draw.choice(sites), "y": draw.randint(0, 1)}
        if draw.random() < 0.5:
            row["note"] = "some words " * draw.randint(1, 3)
        results.append(row)
    return results


def learn(client, some, model="m"):
    answer = client.post(f"/models/{model}/learn", json=some)
    assert answer.status_code == 200
    return answer.json()


def columns(client, query="", model="m"):
    got = client.get(f"/models/{model}/columns{query}")
    assert got.status_code == 200, got.text
    return got.json()


def test_columns_are_counted_and_drift_is_found(client):
    client.put("/models/m", json=SPEC)
    empty = columns(client)
    assert (empty["rows"], empty["columns"], empty["has_more"]) == (0, [], False)
    learn(client, rows(6_000))
    still = columns(client)
    assert still["rows"] == still["seq"] == 6_000
    assert [one["drift"] for one in still["columns"]] == ["none"] * 3
    learn(client, rows(1_500, 1, price=14.0, sites="aaaaab"))
    moved = columns(client)["columns"]
    assert [one["name"] for one in moved] == ["price", "site", "note"]
    price, site, note = moved
    assert price["psi"] > site["psi"] > 0.25 > 0.1 > note["psi"]
    assert [one["drift"] for one in moved] == ["large", "large", "none"]
    assert (price["kind"], price["count"], price["missing"]) == ("number", 7_500, 0)
    assert price["mean"] == pytest.approx(10.8, abs=0.2) and price["top"] == []
    assert site["top"][0]["value"] == "a" and site["mean"] is None and site["last"] in "ab"
    assert note["kind"] == "text" and 3.5 < note["mean"] < 4.5
    assert note["count"] + note["missing"] == pytest.approx(7_500, abs=10)
    # Both windows of those that moved, as shares.
    assert note["bins"] == []
    for one in (price, site):
        assert sum(bin_["before"] for bin_ in one["bins"]) == pytest.approx(1.0, abs=0.01)
        assert sum(bin_["recent"] for bin_ in one["bins"]) == pytest.approx(1.0, abs=0.01)
    assert price["bins"][0]["low"] is None and price["bins"][-1]["high"] is None
    edges = [(bin_["low"], bin_["high"]) for bin_ in price["bins"]]
    assert all(low == high for (_, high), (low, _) in pairwise(edges))
    assert price["bins"][-1]["recent"] > 3 * price["bins"][-1]["before"]
    # The value that became frequent comes first; values may share a bin.
    assert "a" in site["bins"][0]["value"]
    assert site["bins"][0]["recent"] > site["bins"][0]["before"] + 0.15
    metrics = client.get("/metrics").text
    for one in moved:
        shown = f'dualstream_column_drift{{column="{one["name"]}",model="m"}} {one["psi"]}'
        assert (shown in metrics) == (one["psi"] >= 0.1)
    by_name = columns(client, "?sort=name")["columns"]
    assert [one["name"] for one in by_name] == ["note", "price", "site"]
    assert sorted(by_name, key=lambda one: -one["psi"]) == moved


def test_refused_rows_are_counted_by_column(client):
    client.put("/models/m", json=SPEC)
    some = rows(4)
    some[1]["price"] = "cheap"
    some[2]["site"] = {"a": 1}
    some[3] |= {"price": "dear"}
    del some[0]["note"]
    assert learn(client, some)["learned"] == 1
    result = {one["name"]: one for one in columns(client)["columns"]}
    assert (result["price"]["refused"], result["price"]["count"]) == (2, 1)
    assert (result["site"]["refused"], result["site"]["count"]) == (1, 1)
    client.put("/models/n", json=SPEC)
    learn(client, [{"price": 1.0, "y": 1}, {"price": 1.0, "note": ["a"], "y": 1}], "n")
    [note, price] = columns(client, "?sort=name", "n")["columns"]
    assert (note["kind"], note["count"], note["refused"]) == ("unknown", 0, 1)
    assert (price["count"], price["refused"]) == (1, 0)


def test_named_and_numbered_features_without_columns(client):
    client.put("/models/m", json={})
    learn(client, {"samples": [{"x": {"age": 39, "city": "Oslo"}, "y": 1}]})
    age, city = columns(client)["columns"]
    assert (age["kind"], age["last"], age["missing_includes_zero"]) == ("number", 39.0, True)
    assert (city["kind"], city["last"]) == ("category", "Oslo")
    client.put("/models/n", json={"features": {"kind": "indexed", "dim": 3}})
    learn(client, {"samples": [{"x": [1.0, 0, 3.0], "y": 1}, {"x": [0, 0, 2.0], "y": 0}]}, "n")
    first, third = columns(client, "?sort=name", "n")["columns"]
    assert (first["name"], first["mean"], first["missing"], first["last"]) == ("1", 0.5, 0, 0.0)
    assert (third["name"], third["mean"], third["count"]) == ("3", 2.5, 2)


def test_an_unknown_model_or_order_is_refused(client):
    assert_problem(client.get("/models/none/columns"), 404, "unknown-model")
    client.put("/models/n", json=SPEC)
    assert_problem(client.get("/models/n/columns?sort=size"), 422, "invalid-request")


CARS = "mpg,weight,y\n" + "".join(f"{10 + k % 20},{1800 + 7 * k},{k % 2}\n" for k in range(300))


@pytest.mark.parametrize("spec", [{}, {"columns": {}}, {"columns": {"types": {"mpg": "number"}}}])
@pytest.mark.parametrize("count", [10, 300])
def test_weights_that_look_like_a_feature_get_a_warning(client, spec, count):
    lines = CARS.splitlines()[: count + 1]
    header, *records = (line.split(",") for line in lines)
    typed = [[float(cell) for cell in record] for record in records]
    table = pa.table({name: [row[k] for row in typed] for k, name in enumerate(header)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    arrow = sink.getvalue().to_pybytes()
    client.put("/models/m", json=spec)

    def sent(body, kind="text/csv"):
        answer = client.post("/models/m/learn", content=body, headers={"content-type": kind})
        assert answer.status_code == 200, answer.text
        return answer.json()

    text = "\n".join(lines)
    for answer in (sent(text), sent(arrow, "application/vnd.apache.arrow.stream")):
        [warning] = answer["warnings"]
        assert "column 'weight' is the weight of each row" in warning and "far from 1" in warning
    assert "warnings" not in sent(text.replace("weight", "mass"))
    ordinary = "\n".join([lines[0], *(f"1,{1 + k % 50},{k % 2}" for k in range(count))])
    assert "warnings" not in sent(ordinary)
    roles = columns(client)["roles"]
    assert roles["weight"] == "weight" and roles["y"] == "label"
    assert "mass" in [one["name"] for one in columns(client)["columns"]]


def test_roles_of_declared_columns_are_those_of_the_specification(client):
    client.put("/models/m", json={"columns": {"label": "bought", "weight": "times", "id": None}})
    assert columns(client)["roles"] == {"bought": "label", "times": "weight"}
    body = "weight,bought\n1800,1\n2500,0\n"
    answer = client.post("/models/m/learn", content=body, headers={"content-type": "text/csv"})
    assert "warnings" not in answer.json()

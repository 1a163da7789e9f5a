"""Late labels of multiclass models: loss and mistakes by the class scores as they were served."""

import math

import pytest

from tests.service.conftest import assert_problem

SPEC = {
    "task": "multiclass",
    "algorithm": "dual_ascent",
    "loss": "logistic",
    "features": {"kind": "indexed", "dim": 3},
}


def row(number: int, **more) -> dict:
    return {"x": [1.0, number % 3 - 1.0, number % 5 / 2]} | more


def learn(client, count: int, shift: int = 0) -> None:
    samples = [row(number, y="abc"[(number + shift) % 3]) for number in range(count)]
    assert client.post("/models/m/learn", json={"samples": samples}).status_code == 200


def class_scores(client, number: int) -> dict[str, float]:
    """Scores of all classes by the served weights."""
    got = client.get("/models/m/weights").json()
    x, scores = row(number)["x"], dict(zip("abc", got["intercept"], strict=True))
    for one in got["weights"]:
        scores[one["label"]] += x[one["index"] - 1] * one["weight"]
    return scores


def summed(client) -> tuple[float, float, float]:
    got = client.get("/models/m/metrics").json()
    view = got["since_start"]
    return tuple(got["rows"] * view[name] for name in ("loss", "error_rate", "log_loss"))


def logistic(margin: float) -> float:
    return math.log1p(math.exp(-margin))


def expected(scores: dict[str, float], y: str) -> tuple[float, float, float]:
    loss = sum(logistic(score if name == y else -score) for name, score in scores.items())
    odds = {name: 1 / (1 + math.exp(-score)) for name, score in scores.items()}
    if y not in scores:
        return loss + math.log(2), 1.0, -math.log(1e-15)
    log_loss = -math.log(odds[y] / sum(odds.values()))
    return loss, float(max(scores, key=scores.__getitem__) != y), log_loss


@pytest.fixture
def late(serve, store):
    client = serve(store=store)
    assert client.put("/models/m", json=SPEC).status_code == 201
    return client


def state(client) -> dict:
    got = client.get("/models/m?digest=true").json()
    return {name: got[name] for name in ("seq", "samples", "state_digest")}


def test_loss_and_mistakes_are_those_of_the_served_class_scores(late, serve, store):
    learn(late, 30)
    served = [class_scores(late, number) for number in range(5)]
    samples = [row(number, id=f"r{number}") for number in range(5)]
    answer = late.post("/models/m/predict?remember=true", json={"samples": samples}).json()
    assert answer["remembered"] == 5
    assert answer["scores"] == pytest.approx([max(one.values()) for one in served], rel=1e-9)
    learn(late, 40, shift=1)  # by now they would be scored otherwise
    before = summed(late)
    labels = ["a", "b", "c", "new", "a"]
    body = [{"id": f"r{number}", "y": y} for number, y in enumerate(labels)]
    got = late.post("/models/m/labels", json={"labels": body}).json()
    costs = [expected(scores, y) for scores, y in zip(served, labels, strict=True)]
    assert (got["learned"], got["mistakes"]) == (5, sum(cost[1] for cost in costs))
    assert got["loss"] == pytest.approx(sum(cost[0] for cost in costs) / 5, rel=1e-6)
    for after, earlier, column in zip(summed(late), before, zip(*costs, strict=True), strict=True):
        assert after - earlier == pytest.approx(sum(column), rel=1e-5)
    again = late.post("/models/m/labels", json={"id": "r3", "y": "new"}).json()
    assert again["duplicate"]
    other = late.post("/models/m/labels", json={"id": "r3", "y": "a"})
    assert "another label" in assert_problem(other, 422, "invalid-rows")["detail"]
    # Another worker replays the journal to the same bits.
    assert state(serve(store=store)) == state(late)


def test_a_class_can_be_the_default_label(serve, tmp_path):
    client = serve(store=f"sqlite:///{tmp_path / 'journal.db'}")
    client.put("/models/m", json=SPEC)
    learn(client, 6)
    query = "remember=true&default_label=b&default_after_s=0.05"
    client.post(f"/models/m/predict?{query}", json=row(1, id="r")).raise_for_status()
    while client.get("/models/m").json()["seq"] == 6:
        pass
    got = client.post("/models/m/labels", json={"id": "r", "y": "b"}).json()
    assert got["duplicates"] == [{"index": 0, "seq": 7}]


def test_a_model_without_classes_yet_remembers(late):
    late.post("/models/m/predict?remember=true", json=row(1, id="r")).raise_for_status()
    got = late.post("/models/m/labels", json={"id": "r", "y": "first"}).json()
    assert (got["mistakes"], got["loss"]) == (1, pytest.approx(math.log(2)))


def test_more_than_100_classes_cannot_wait(serve, tmp_path):
    client = serve(store=f"sqlite:///{tmp_path / 'journal.db'}")
    client.put("/models/m", json=SPEC)
    samples = [row(number, y=f"class {number}") for number in range(101)]
    client.post("/models/m/learn", json={"samples": samples[:100]}).raise_for_status()
    client.post("/models/m/predict?remember=true", json=row(1, id="r")).raise_for_status()
    client.post("/models/m/learn", json=samples[100]).raise_for_status()
    answer = client.post("/models/m/predict?remember=true", json=row(1, id="s"))
    problem = assert_problem(answer, 409, "cannot-remember")
    assert "more than 100 classes" in problem["detail"]
    got = client.post("/models/m/labels", json={"id": "r", "y": "class 100"}).json()
    assert got["mistakes"] == 1


def test_rows_of_a_model_with_history_wait_for_their_classes(late, serve, store):
    spec = {
        "task": "multiclass",
        "algorithm": "dual_ascent",
        "features": {"kind": "hashed", "bits": 10},
        "columns": {"label": "kind", "id": "tx", "types": {"card": "category", "amount": "number"}},
        "history": [
            {"by": "card", "of": "amount", "stats": ["mean", "label_mean"], "half_life": [10]}
        ],
    }  # fmt: skip
    assert late.put("/models/h", json=spec).status_code == 201
    rows = [{"card": f"c{n % 3}", "amount": n + 1.0, "kind": "abc"[n % 3]} for n in range(12)]
    late.post("/models/h/learn", json=rows).raise_for_status()
    sample = {"card": "c1", "amount": 5.0, "tx": "t1"}
    got = late.post("/models/h/predict?remember=true", json=sample).json()
    assert (got["remembered"], late.get("/models/h").json()["seq"]) == (1, 13)
    answer = late.post("/models/h/labels", json={"id": "t1", "y": "b"}).json()
    assert (answer["seq"], answer["learned"]) == (14, 1)
    states = [
        client.get("/models/h?digest=true").json()["state_digest"]
        for client in (late, serve(store=store))
    ]
    assert states[0] == states[1]

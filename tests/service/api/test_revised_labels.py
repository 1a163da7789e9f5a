"""Labels with `revise=true`: rows are learned once more, and metrics count them once."""

import time

import pytest

from tests.service.conftest import SPEC, assert_problem

LOGISTIC = SPEC | {"loss": "logistic"}


@pytest.fixture
def late(serve, store):
    """A client whose server has the model `m`, on each store."""
    client = serve(store=store)
    assert client.put("/models/m", json=LOGISTIC).status_code == 201
    return client


def row(number: int, **more) -> dict:
    return {"x": [1.0, number % 3 - 1.0, number % 5 / 2, 0.0, 0.5]} | more


def remember(client, *ids: str, **query) -> int:
    samples = [row(number, id=id) for number, id in enumerate(ids)]
    query = {"remember": "true"} | query
    answer = client.post("/models/m/predict", params=query, json={"samples": samples})
    assert answer.status_code == 200, answer.text
    return answer.json()["remembered"]


def label(client, *labels: tuple[str, object], key: str | None = None, revise: bool = True):
    body = {"labels": [{"id": id, "y": y} for id, y in labels]}
    headers = {} if key is None else {"idempotency-key": key}
    query = {"revise": "true"} if revise else {}
    return client.post("/models/m/labels", params=query, json=body, headers=headers)


def metrics(client) -> dict:
    return client.get("/models/m/metrics").json()


def state(client) -> dict:
    got = client.get("/models/m?digest=true").json()
    return {name: got[name] for name in ("seq", "samples", "state_digest")}


def outcome(answer) -> tuple:
    got = answer.json()
    assert answer.status_code == 200, answer.text
    return got["count"], got["seq"], [one["seq"] for one in got.get("duplicates", [])]


def test_a_label_is_revised_back_and_forth(late):
    assert remember(late, "a", "b") == 2
    assert outcome(label(late, ("a", 1), ("b", 1))) == (2, 2, [])
    before = metrics(late)
    assert outcome(label(late, ("a", 1))) == (0, 1, [1])
    assert outcome(label(late, ("a", 0))) == (1, 3, [])
    assert outcome(label(late, ("a", 0))) == (0, 3, [3])
    assert outcome(label(late, ("a", 1), ("b", 0), ("b", 0))) == (2, 5, [5])
    # The row is learned once more, and the metrics have it once.
    assert state(late)["samples"] == 5 and metrics(late) == before | {"samples": 5, "seq": 5}
    refused = label(late, ("a", 0), revise=False)
    assert_problem(refused, 422, "invalid-rows")
    assert refused.json()["detail"].endswith("sample 'a' was learned with another label")
    assert outcome(label(late, ("a", 1), revise=False)) == (0, 4, [4])
    assert remember(late, "a") == 0
    assert outcome(label(late, ("a", 0))) == (1, 6, [])


def test_the_step_is_the_one_of_the_row_with_its_new_label(serve, tmp_path):
    late, plain = (serve(store=f"sqlite:///{tmp_path / name}.db") for name in "ab")
    for client in (late, plain):
        client.put("/models/m", json=SPEC)
    remember(late, "a", "b")
    assert outcome(label(late, ("b", 1), ("b", 0), ("a", 0), ("b", 1))) == (4, 4, [])
    for number, y in ((1, 1), (1, 0), (0, 0), (1, 1)):
        plain.post("/models/m/learn", json=row(number, y=y))
    weights = [client.get("/models/m/weights").json() for client in (late, plain)]
    assert weights[0] == weights[1] and metrics(late)["rows"] == 2


def test_a_label_without_revise_is_final(late):
    remember(late, "a")
    assert outcome(label(late, ("a", 1), revise=False)) == (1, 1, [])
    refused = label(late, ("a", 0))
    assert_problem(refused, 422, "invalid-rows")
    assert "cannot be revised" in refused.json()["detail"]
    assert outcome(label(late, ("a", 1))) == (0, 1, [1])
    unknown = label(late, ("b", 1))
    assert_problem(unknown, 404, "unknown-sample")


def test_a_repeated_request_gets_its_first_answer_after_a_revision(late):
    remember(late, "a", "b")
    first = label(late, ("a", 1), ("c", 1), ("a", 0), ("b", 1), key="k")
    assert (first.json()["count"], first.json()["rejected"]) == (3, 1)
    assert outcome(label(late, ("a", 1), ("b", 0))) == (2, 5, [])
    before = state(late)
    again = label(late, ("a", 1), ("c", 1), ("a", 0), ("b", 1), key="k")
    assert again.json() == first.json() | {"duplicate": True}
    assert again.headers["idempotency-replayed"] == "true" and state(late) == before
    assert_problem(label(late, ("a", 1), key="k"), 422, "idempotency-key-reused")
    other = label(late, ("a", 1), ("c", 1), ("a", 0), ("b", 1), key="k", revise=False)
    assert_problem(other, 422, "idempotency-key-reused")


def test_a_repeated_request_gets_its_first_answer_with_labels_of_one_row(late):
    remember(late, "a", "b")
    assert outcome(label(late, ("b", 1))) == (1, 1, [])
    labels = [("a", 1), ("a", 1), ("b", 1), ("a", 0), ("b", 0), ("a", 0), ("c", 1)]
    first = label(late, *labels, key="k")
    assert outcome(first) == (3, 4, [2, 1, 3])
    for _ in range(2):
        assert label(late, *labels, key="k").json() == first.json() | {"duplicate": True}
        label(late, ("a", 1), ("b", 1))


def test_a_repeated_request_of_duplicates_gets_its_first_answer_after_a_revision(late):
    remember(late, "a", "b")
    assert outcome(label(late, ("a", 1), ("b", 1))) == (2, 2, [])
    requests = [
        ("one", [("a", 1)], True),
        ("as before", [("b", 1)], False),
        ("more", [("b", 1), ("c", 0), ("a", 1), ("a", 1)], True),
    ]
    first = {key: label(late, *labels, key=key, revise=also) for key, labels, also in requests}
    assert outcome(first["one"]) == (0, 1, [1]) and outcome(first["more"]) == (0, 2, [2, 1, 1])
    remember(late, "c")
    revised = [("a", 0), ("b", 0)], [("c", 1)], [("a", 1), ("b", 1)], [("a", 0), ("b", 0), ("c", 0)]
    for labels in revised:
        label(late, *labels)
        for key, again, also in requests:
            got = label(late, *again, key=key, revise=also)
            assert got.json() == first[key].json() | {"duplicate": True}
            assert got.headers["idempotency-replayed"] == "true"


def test_labels_can_be_revised_after_their_keys_expired(serve, store):
    late = serve(store=store, key_ttl_s=1)
    late.put("/models/m", json=LOGISTIC)
    remember(late, "a")
    assert outcome(label(late, ("a", 1))) == (1, 1, [])
    time.sleep(1.05)
    assert remember(late, "a") == 0
    assert outcome(label(late, ("a", 1), revise=False)) == (0, 1, [1])
    assert_problem(label(late, ("a", 0), revise=False), 422, "invalid-rows")
    assert outcome(label(late, ("a", 0))) == (1, 2, [])


def test_default_labels_can_be_revised_if_the_prediction_says_so(serve, store):
    late = serve(store=store)
    late.put("/models/m", json=LOGISTIC)
    query = {"default_label": "0", "default_after_s": "0.01"}
    remember(late, "a", **query, revise="true")
    remember(late, "b", **query)
    deadline = time.monotonic() + 60
    while state(late)["seq"] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    got = label(late, ("a", 1), ("b", 1)).json()
    assert (got["count"], got["rejected"], got["errors"][0]["index"]) == (1, 1, 1)
    assert metrics(late)["rows"] == 2
    for wrong in ({"revise": "true"}, {"remember": "true", "revise": "true"}):
        answer = late.post("/models/m/predict", params=wrong, json=row(0, id="c"))
        assert_problem(answer, 422, "invalid-query")


def test_classes_and_numbers_are_revised(serve, subtests):
    late = serve()
    for spec, labels in (
        ({"task": "regression"}, [2.5, -1.0, 2.5]),
        ({"task": "multiclass"}, ["cat", 3, "dog"]),
    ):
        with subtests.test(spec["task"]):
            late.delete("/models/m")
            late.put("/models/m", json={"features": {"kind": "indexed", "dim": 5}} | spec)
            remember(late, "a")
            for number, y in enumerate(labels, 1):
                assert outcome(label(late, ("a", y))) == (1, number, [])
            assert metrics(late)["rows"] == 1
            digest = state(late)
            late.post("/models/m/labels", json={"id": "a", "y": labels[-1]})
            assert state(late) == digest


def test_unlearning_removes_a_row_whose_label_may_be_revised(late):
    remember(late, "a", "b")
    assert outcome(label(late, ("a", 1), ("b", 1))) == (2, 2, [])
    assert outcome(label(late, ("a", 0))) == (1, 3, [])
    assert late.delete("/models/m/samples/a").status_code in (200, 202)
    assert_problem(label(late, ("a", 1)), 422, "invalid-rows")
    assert outcome(label(late, ("b", 0)))[0] == 1


def test_a_value_of_revise_that_is_none_is_refused(late):
    answer = late.post("/models/m/labels?revise=perhaps", json={"id": "a", "y": 1})
    assert answer.status_code == 422

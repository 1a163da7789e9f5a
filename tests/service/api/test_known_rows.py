"""The `seq` of an answer whose rows are all known is that of the last of them, whatever the key."""

import itertools

import pytest

from tests.service.conftest import SPEC

ROW = {"x": {"1": 1.0}, "y": 1}


def samples(*ids: str | None) -> dict:
    return {"samples": [ROW if id_ is None else ROW | {"id": id_} for id_ in ids]}


@pytest.mark.parametrize("atomic", [False, True])
def test_the_seq_of_known_rows_is_the_same_with_and_without_a_key(serve, store, atomic) -> None:
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    keys = (f"key {number}" for number in itertools.count())

    def learn(body: dict, key: str | None = None) -> dict:
        headers = {} if key is None else {"idempotency-key": key}
        query = "?atomic=true" if atomic else ""
        answer = client.post(f"/models/m/learn{query}", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    learn(samples("a", "b", "c"))
    learn(samples(None, None, None))
    for body, seq in ((samples("a"), 1), (samples("b", "a"), 2), (samples("a", "c", "b"), 3)):
        key = next(keys)
        results = [learn(body), learn(body, key), learn(body, key), learn(body, next(keys))]
        assert [one["seq"] for one in results] == [seq] * 4
        assert [one["count"] for one in results] == [0] * 4
        assert [one["duplicate"] for one in results] == [True] * 4
        assert {str(one["duplicates"]) for one in results} == {str(results[0]["duplicates"])}
    # With a new row the answer has that of the new row.
    key = next(keys)
    assert learn(samples("a", "d"), key)["seq"] == learn(samples("a", "d"), key)["seq"] == 7
    assert learn(samples("e", "a", None), next(keys))["seq"] == 9

"""`GET /models/{id}?digest=true`: equal where two states have the same bits, else another one."""

import os

import numpy as np

from tests.service.support import ADULT, learn_adult, loaded, replica_of


def got(client) -> tuple[str, str]:
    answer = client.get("/models/m?digest=true")
    return answer.headers["etag"], answer.json()["state_digest"]


def test_workers_and_a_replay_have_one_digest(serve, store):
    one, other = serve(store=store, snapshot_every=30), serve(store=store)
    one.put("/models/m", json=ADULT)
    other.get("/models/m")
    digests = set()
    for first in range(0, 90, 10):
        # One learns its own rows from memory, the other reads them.
        seq = learn_adult(one, first, first + 10, **{"idempotency-key": f"k{first}"}).json()["seq"]
        other.get(f"/models/m/predict?x=1:1&min_seq={seq}")
        assert got(one) == got(other)
        assert loaded(store).capture().state_digest() == got(one)[1]
        digests.add(got(one)[1])
    assert len(digests) == 9


def test_one_bit_makes_another_digest(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=ADULT)
    learn_adult(client, 0, 50)
    captured = replica_of(client).capture()
    digest = captured.state_digest()
    tried = 0
    for name, array in captured.arrays.items():
        if array.size:
            bits = array.reshape(-1).view(np.uint8)
            bits[-1] ^= 1
            assert captured.state_digest() != digest, name
            bits[-1] ^= 1
            tried += 1
    assert tried > 10 and captured.state_digest() == digest


def test_digest_is_returned_on_request(client):
    assert "state_digest" not in client.put("/models/m", json=ADULT).json()
    assert "state_digest" not in client.get("/models/m").json()
    assert "state_digest" not in client.get("/models").json()["models"][0]
    assert len(client.get("/models/m?digest=true").json()["state_digest"]) == 64
    assert client.get("/readyz?verbose").json()["process"] == os.getpid()

"""`dualstream replay --set history=...`: other groups of a journal's keys, times and values."""

import asyncio
import json
import os
from typing import Any

import pytest
from starlette.testclient import TestClient

from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import AppendRequest, Part
from dualstream.service.journal.record import encode_rows
from dualstream.service.replay.replay import under_another_spec
from dualstream.service.replica.point_in_time import state_at
from dualstream.service.replica.replica import Replica
from dualstream.solvers.rows.columns.inputs import key_number
from dualstream.solvers.rows.hashing import hash_names
from tests.service.features.versions.support import settled
from tests.service.replay.replay_support import got, refused, replayed, state

CARD = {"by": "card", "time": "at", "of": "amount", "stats": ["count", "mean"], "half_life": "1h"}
SHOP = {"by": ["shop", "card"], "of": "tax", "stats": ["last", "label_mean"], "half_life": 5}
TYPES = {"at": "time", "card": "ignore", "shop": "category", "amount": "number", "tax": "number"}
SPEC = {
    "algorithm": "dual_ascent",
    "columns": {"types": TYPES},
    "features": {"kind": "hashed", "bits": 12},
    "history": [CARD, SHOP],
}
CHANGED: dict[str, Any] = {
    "half-lives and statistics": [
        CARD | {"stats": ["count", "since", "z"], "half_life": ["5m", "30d"], "keys": 1000},
        SHOP | {"labels": 2},
    ],
    "a group less": [CARD],
    "groups of the other keys": [
        {"by": "shop", "of": "amount", "stats": ["mean", "label_mean"], "half_life": 3},
        {"by": "card", "time": "at", "stats": ["since"], "labels": 1},
    ],
    "without keys": [{"time": "at", "of": "tax", "stats": ["change", "since"]}],
}


def row(n: int) -> dict[str, Any]:
    minutes = 7 * n - 60 * (n % 5 == 0)  # some are late
    one = {
        "at": f"2026-05-{6 + minutes // 1440:02}T{minutes // 60 % 24:02}:{minutes % 60:02}:00Z",
        "card": n * n % 7,
        "shop": f"s{n % 3}",
        "amount": n % 4,
        "tax": n * n % 11 - 5.5,
    }
    if n % 9 == 8:
        del one["card"]
    return one


def send(
    client: TestClient, model: str, late: bool, observed: bool = True, label: Any = lambda n: n % 2
) -> None:
    """Rows that are learned; with `observed`, `late` also such that are observed, labelled late."""

    def post(route: str, body: Any) -> None:
        answer = client.post(f"/models/{model}/{route}", json=body)
        assert answer.status_code == 200, answer.text

    numbers = iter(range(10, 1000))
    for step in range(6):
        post("learn", [row(n) | {"y": label(n)} for n in (next(numbers), next(numbers))])
        if late:
            served = [row(next(numbers)) | {"id": f"{step}-{i}"} for i in range(3)]
            post("predict?remember=true", served[:2])
            post("predict?remember=true", served[2:])
        rows = [row(next(numbers)) for _ in range(2)]
        if observed:
            post("observe", rows)
        post("learn", [row(n) | {"y": label(n)} for n in (next(numbers),)])
        if late and step:
            ids = [f"{step - 1}-0", f"{step}-1", f"{step - 1}-2"]
            labels = [{"id": one, "y": label(step + i)} for i, one in enumerate(ids)]
            post("labels", {"labels": labels})


def replica_after(store: str, history: Any, until: int | None = None, model: str = "m") -> Replica:
    """A model replayed with this history; if that is None, with its own."""

    async def replay() -> Replica:
        journal = await open_journal(store)
        try:
            record = await journal.get(model)
            end = record.seq if until is None else until
            if history is None:
                return await state_at(ALL, journal, record, end)
            changes = {"history": history}
            return (await under_another_spec(ALL, journal, record, end, changes))[0]
        finally:
            await journal.close()

    return asyncio.run(replay())


def learner_after(*arguments: Any) -> dict[str, bytes]:
    """Arrays of the learner of `replica_after`."""
    return bits_of(replica_after(*arguments))


def bits_of(replica: Replica) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in replica.learner.state().items()}


def live(client: TestClient, model: str) -> dict[str, bytes]:
    state(client, model)  # is up to date
    return bits_of(client.app._registry.find(model).replica)  # type: ignore[attr-defined]


def create(client: TestClient, model: str, history: Any, **more: Any) -> None:
    assert client.put(f"/models/{model}", json=SPEC | {"history": history} | more).is_success


@pytest.mark.parametrize("case", CHANGED)
def test_other_groups_learn_what_a_model_with_them_learns(serve, store, case: str):
    client = serve(store=store)
    for model, history in (("m", SPEC["history"]), ("other", CHANGED[case])):
        create(client, model, history)
        send(client, model, late=False)
    result = replayed(store, "--set", f"history={json.dumps(CHANGED[case])}")
    assert got(result) == state(client, "other") != state(client)
    assert got(replayed(store)) == state(client)


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("case", CHANGED)
def test_late_labels_are_learned_as_the_new_groups_serve_their_rows(
    serve, store, case: str, task: str
):
    client = serve(store=store)
    label = (lambda n: f"class {n % 12}") if task == "multiclass" else (lambda n: n % 2)
    intervals = {"intervals": {"coverage": [0.5, 0.8]}}
    for model, history in (("m", SPEC["history"]), ("other", CHANGED[case])):
        create(client, model, history, task=task, **intervals)
        send(client, model, late=True, label=label)
    result = replayed(store, "--set", f"history={json.dumps(CHANGED[case])}")
    own = replayed(store)
    for model, one in (("m", own), ("other", result)):
        wanted = client.get(f"/models/{model}/metrics").json()["intervals"]
        assert one["metrics"].pop("intervals") == wanted and wanted[0]["rows"] > 0
    assert got(result) == state(client, "other") != state(client)
    assert got(own) == state(client)


@pytest.mark.parametrize("case", ["a group less", "groups of the other keys"])
def test_members_of_a_portfolio_serve_late_rows_again(serve, store, case: str):
    client = serve(store=store)
    for model, history in (("m", SPEC["history"]), ("other", CHANGED[case])):
        create(client, model, history, algorithm="portfolio")
        send(client, model, late=True)
    result = replayed(store, "--set", f"history={json.dumps(CHANGED[case])}")
    assert got(result) == state(client, "other") != state(client)


def test_a_replay_of_a_part_of_the_journal_ends_at_its_last_row(serve, store):
    client = serve(store=store)
    changed = CHANGED["half-lives and statistics"]
    for model, history in (("m", SPEC["history"]), ("other", changed)):
        create(client, model, history)
        send(client, model, late=True)
    last = client.get("/models/m").json()["seq"]
    for until in range(0, last, 4):
        expected = learner_after(store, None, until, "other")
        assert learner_after(store, changed, until) == expected


@pytest.mark.parametrize("parts", [["hour"], ["hour", "age"]])
def test_rows_are_replayed_without_a_history(serve, store, parts: list[str]):
    client = serve(store=store)
    columns = {"types": TYPES | {"at": {"kind": "time", "parts": parts}}}
    for model, history in (("m", SPEC["history"]), ("other", None)):
        create(client, model, history, columns=columns)
        # Without a history rows cannot be observed; they would count for ages.
        send(client, model, late=True, observed=model == "m" and parts == ["hour"])
    assert learner_after(store, []) == live(client, "other") != live(client, "m")
    result = replayed(store, "--set", "history=null")
    assert "history" not in result["spec"]
    assert result["samples"] == client.get("/models/other").json()["samples"]
    assert result["rejected"] == 0


def test_a_row_that_was_served_before_the_kept_journal_has_columns_of_no_history(serve, store):
    client = serve(store=store, snapshot_every=15)
    create(client, "m", SPEC["history"])
    send(client, "m", late=False)
    early = {"id": "early"} | row(16)
    assert client.post("/models/m/predict?remember=true", json=early).is_success
    for _ in range(2):
        send(client, "m", late=False)
        settled(client)
    assert client.post("/models/m/labels", json={"id": "early", "y": 1}).is_success
    changed = CHANGED["a group less"]
    result = replayed(store, "--set", f"history={json.dumps(changed)}")
    assert result["from_seq"] > 1
    weights = replica_after(store, changed).learner.weights
    kept, removed = ["card.count.1h", "card.amount.mean.1h"], ["shop*card.tax.last"]
    assert weights[hash_names(kept, 12)].all()
    assert not weights[hash_names(removed, 12)].any()


def test_a_row_that_was_served_at_a_seq_that_was_lost_is_served_before_its_label(serve, store):
    client = serve(store=store)
    create(client, "m", SPEC["history"])
    send(client, "m", late=True)
    card, at = 2**12, 2**12 + 2
    served: dict[str, Any] = {"served_scores": [0.5], "served_seqs": [10**6]}
    append(store, "m", encode_rows([0, 3], [7, card, at], [1.0, 99.0, 1.75e9], [1.0], **served))
    totals = replica_after(store, CHANGED["a group less"]).learner.state()["history.totals"]
    assert totals[0] == replica_after(store, None).learner.state()["history.totals"][0]


def test_a_label_replaces_another_one_in_the_new_groups(serve, store):
    client = serve(store=store)
    dim, changed = 2**12, [CARD | {"stats": ["mean", "label_mean"], "labels": 1}]
    for model, history in (("m", SPEC["history"]), ("other", changed)):
        create(client, model, history)
        observed = {"at": 1.75e9, "card": "c", "amount": 3}
        client.post(f"/models/{model}/observe", json=observed).raise_for_status()
        # Served from the empty history, so without columns.
        served: dict[str, Any] = {"served_scores": [0.5], "served_seqs": [0]}
        inputs = [dim, dim + 2, dim + 3] if model == "m" else [dim, dim + 1, dim + 2]
        row = [0, 4], [7, *inputs], [1.0, key_number("c"), 1.75e9, 3.0]
        append(store, model, encode_rows(*row, [1.0], **served))
        append(store, model, encode_rows(*row, [-1.0], **served, earlier=[[(2, 1.0)]]))
        client.post(f"/models/{model}/learn", json=observed | {"y": 1}).raise_for_status()
    replayed_state = replica_after(store, changed).learner.state()
    assert learner_after(store, changed) == live(client, "other")
    assert replayed_state["history.totals"].tolist() == [2.0, 0.5]


def append(store: str, model: str, body: bytes) -> None:
    """Journal a row as another worker does."""

    async def run() -> None:
        journal = await open_journal(store)
        try:
            record = await journal.get(model)
            parts = [Part(body, 1)]
            await journal.append(
                AppendRequest(model, record.incarnation, os.urandom(16), 10**9, parts)
            )
        finally:
            await journal.close()

    asyncio.run(run())


def test_a_history_of_what_the_journal_does_not_have_is_refused(serve, store):
    client = serve(store=store)
    create(client, "m", SPEC["history"])
    client.put("/models/plain", json={"columns": {"types": TYPES}})
    for group, reason in (
        (CARD | {"by": "amount"}, "no key 'amount' (its keys are card, shop)"),
        (CARD | {"of": "amount", "by": ["card", "at"]}, "history.0.by.1 must be a column"),
        (CARD | {"of": "late"}, "history.0.of must be a column"),
        (SHOP | {"by": "tax"}, "no key 'tax'"),
    ):
        said = refused(store, "--set", f"history={json.dumps([group])}")
        assert reason in said
    assert "learn the file again with the new specification" in said
    assert "dualstream compare FILE --columns SPEC" in said
    said = refused(store, "--set", f"history={json.dumps([CARD])}", model="plain")
    assert "no key 'card' (it has none)" in said

"""What parts of the state keep of rows that wait for their labels comes back with the labels."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pytest

from dualstream.service.features import FEATURES
from dualstream.service.features.feature import Feature
from dualstream.service.journal import open_journal
from dualstream.service.replay.replay import under_another_spec
from dualstream.service.replica.features import Features
from dualstream.service.replica.parts import AnswerField, Scored, StatePart
from dualstream.service.replica.replica import Replica
from dualstream.solvers import Batch, Outcome
from tests.service.conftest import SPEC

NOTHING = [-1.0, -1.0]
PORTFOLIO = {"features": SPEC["features"]}


class Echo(StatePart):
    """Rows keep twice their score, and a constant; the state has what came back."""

    prefixes = ("echo",)
    served_width = 2

    def __init__(self, constant: float) -> None:
        self.constant = constant
        self.seen: list[list[float]] = []

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Self:
        return cls(1.0)

    def served(self, scored: Scored) -> np.ndarray:
        return np.column_stack([2.0 * scored.scores, np.full(len(scored.rows), self.constant)])

    def answers(self, scored: Scored) -> Sequence[AnswerField]:
        return [AnswerField("label", "labels", self.served(scored).tolist())]

    def on_learned(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        parts, first = batch.served_parts, self.first_served
        if parts is None:
            self.seen += [NOTHING] * len(batch)
        else:
            self.seen += np.nan_to_num(parts[:, first : first + 2], nan=-1.0).tolist()

    def arrays(self) -> dict[str, np.ndarray]:
        return {f"{self.prefixes[0]}.seen": np.array(self.seen).reshape(-1, 2)}

    def restore(self, arrays, names) -> None:
        self.seen = arrays[self.prefixes[0]]["seen"].tolist()

    def metrics(self) -> Mapping[str, Any]:
        return {self.prefixes[0]: self.seen}


class Second(Echo):
    """The same with another constant, without fields of answers."""

    prefixes = ("second",)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Self:
        return cls(2.0)

    def answers(self, scored: Scored) -> Sequence[AnswerField]:
        return ()


TWO = (*FEATURES, Feature(name="echo", part=Echo.of), Feature(name="second", part=Second.of))


def seen(client) -> dict[str, list[list[float]]]:
    """What each part got back, by the name of its arrays."""
    metrics = client.get("/models/m/metrics").json()
    return {name: metrics[name] for name in ("echo", "second")}


def learn(client, labels: Sequence[Any], row: Sequence[float] = (1, 0, 0, 2, 0)) -> None:
    for index, label in enumerate(labels):
        x = [one * (1 + index % 3) for one in row]
        assert client.post("/models/m/learn", json={"x": x, "y": label}).status_code == 200


def remember(client, *ids: str) -> list[list[float]]:
    rows = [{"id": one, "x": [1, index, 0, 0, 1]} for index, one in enumerate(ids)]
    answer = client.post("/models/m/predict?remember=true", json={"samples": rows})
    assert answer.status_code == 200
    return answer.json()["labels"]


def label(client, *labels: tuple[str, Any], query: str = "") -> None:
    sent = {"labels": [{"id": name, "y": y} for name, y in labels]}
    assert client.post(f"/models/m/labels{query}", json=sent).status_code == 200


def state_of(client) -> str:
    return client.get("/models/m?digest=true").json()["state_digest"]


SPECS = {
    "dual_ascent": (SPEC, (1, -1)),
    "regression": (SPEC | {"loss": "squared", "task": "regression"}, (1.5, -2.0)),
    "portfolio": (PORTFOLIO, (1, -1)),
    "classes": (SPEC | {"task": "multiclass", "loss": "logistic"}, ("a", "b")),
    "portfolio of classes": (PORTFOLIO | {"task": "multiclass"}, ("a", "b")),
}


@pytest.mark.parametrize(("spec", "pair"), SPECS.values(), ids=SPECS)
def test_rows_bring_back_what_they_kept(serve, tmp_path, spec, pair):
    store = f"sqlite:///{tmp_path / 'm.db'}"
    client, plain = serve(store=store, features=TWO), serve(store=f"sqlite:///{tmp_path / 'p.db'}")
    for one in (client, plain):
        assert one.put("/models/m", json=spec).status_code == 201
        learn(one, pair * 3)
        served = remember(one, "a", "b", "c")
        learn(one, pair)
        label(one, ("b", pair[0]), ("a", pair[1]))
        learn(one, pair[:1])
        if one is client:
            back = [served[1], served[0]]
            got = seen(client)
            assert got["echo"] == [NOTHING] * 8 + back + [NOTHING]
            assert got["second"] == [NOTHING] * 8 + [[two, 2.0] for two, _ in back] + [NOTHING]
    metrics = [one.get("/models/m/metrics").json() for one in (client, plain)]
    assert metrics[0] == metrics[1] | got
    scores = [one.post("/models/m/predict", json={"x": [[1] * 5] * 2}) for one in (client, plain)]
    assert scores[0].json()["scores"] == scores[1].json()["scores"]
    again = serve(store=store, features=TWO)
    assert state_of(again) == state_of(client)
    assert seen(again) == got


def test_revised_labels_bring_back_what_rows_kept(serve):
    client = serve(features=TWO)
    client.put("/models/m", json=PORTFOLIO)
    learn(client, (1, -1))
    [served] = remember(client, "a")
    label(client, ("a", 1), query="?revise=true")
    label(client, ("a", -1), query="?revise=true")
    assert seen(client)["echo"][2:] == [served, served]


def test_replay_with_another_spec_forgets_what_was_served(serve, tmp_path):
    url = f"sqlite:///{tmp_path / 'm.db'}"
    client = serve(store=url, features=TWO)
    client.put("/models/m", json=PORTFOLIO)
    learn(client, (1, -1, 1))
    remember(client, "a")
    learn(client, (1,))
    label(client, ("a", 1))
    assert seen(client)["echo"][-1] != NOTHING

    async def replay() -> Replica:
        journal = await open_journal(url)
        try:
            record = await journal.get("m")
            return (await under_another_spec(Features(TWO), journal, record, 5, {"eta": 0.3}))[0]
        finally:
            await journal.close()

    replica = asyncio.run(replay())
    assert replica.seq == 5
    assert [part.seen for part in replica.parts if isinstance(part, Echo)] == [[NOTHING] * 5] * 2

"""Revised labels of rows that a state has not learned: rolled back, or set aside in a pause."""

import asyncio
import io
import json
import math
import random
from collections import defaultdict
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest

from dualstream.service.archive.restore import restore
from dualstream.service.codecs import as_batch, parse_body
from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.replica.absent import MAX_SPANS, AbsentSeqs
from dualstream.service.replica.point_in_time import state_at
from dualstream.solvers import CorruptState
from dualstream.solvers.rows.hashing import hash_names
from tests.service.archive.support import archive_of
from tests.service.features.guard.support import paused
from tests.service.support import loaded, replica_of
from tests.support import until

AT, CARDS, BITS = 1.75e9, 3, 16
STEPS = 25
GUARD = {"mode": "pause", "loss": 1.0, "norm": None, "deviations": 0.0}
GUARD |= {"every": 2, "patience": 1, "after": 6, "history": 8}
"""It trips over nearly nothing."""
HISTORY = {"by": "card", "time": "at", "stats": ["label_count", "label_mean"]}
SPEC = {
    "algorithm": "sgd",
    "features": {"kind": "hashed", "bits": BITS},
    "columns": {"types": {"at": "time", "card": "category", "amount": "number"}},
    "history": [HISTORY | {"half_life": "1000d", "keys": 1000}],
    "guard": GUARD,
}
LABELS: dict[str, list[Any]] = {
    "binary": [0, 1],
    "regression": [-2.5, 0.25, 1.0, 3.0],
    "multiclass": ["a", "b", "c"],
}


class States:
    """What the states of a model have learned, by the answers of its servers."""

    def __init__(self, clients: list[Any], chance: random.Random, task: str) -> None:
        self.clients, self._chance, self._labels = clients, chance, LABELS[task]
        self.client = clients[0]
        self.rows: dict[int, tuple[str, Any]] = {}
        """Id and label of the row of each seq."""
        self.learned: set[int] = set()
        """Seqs of the rows that the state has learned."""
        self._learned_at: dict[int, set[int]] = {0: set()}
        self._versions: dict[str, set[int]] = {}
        self._ids: list[str] = []
        self.seq = 0
        self.done: set[str] = set()
        self._ways = cycle(["learn", "drop"])

    def post(self, route: str, body: Any = None) -> Any:
        self.client = self._chance.choice(self.clients)
        return self.client.post(f"/models/m/{route}", json=body)

    @property
    def is_paused(self) -> bool:
        return self.client.get("/models/m").json().get("paused") is not None

    def put(self, seqs: list[int], rows: list[tuple[str, Any]], was_paused: bool) -> None:
        """Rows were journalled; the guard may have paused the model at one of them."""
        self.rows.update(zip(seqs, rows, strict=True))
        pause = paused(self.client) if self.is_paused else None
        for seq in range(self.seq + 1, max(seqs, default=self.seq) + 1):
            if not was_paused and (pause is None or seq <= pause["since"]):
                self.learned = self.learned | ({seq} & set(seqs))
            self._learned_at[seq] = self.learned
        if pause is not None and not was_paused:
            self.done.add("pause")
            self.learned = self._learned_at[pause["held_from"]]
        self.controls()

    def controls(self) -> None:
        """Up to the journal's end there are controls, and rows that are only observed."""
        before, self.seq = self.seq, self.client.get("/models/m").json()["seq"]
        for seq in range(before + 1, self.seq + 1):
            self._learned_at.setdefault(seq, self.learned)

    def learn(self) -> None:
        was_paused, number = self.is_paused, len(self.rows)
        id, y = f"p{number}", self._chance.choice(self._labels)
        answer = self.post("learn", row(number) | {"y": y})
        self.put([answer.json()["seq"]], [(id, y)], was_paused)

    def remember(self) -> None:
        id = f"l{len(self._ids)}"
        answer = self.post("predict?remember=true", row(len(self._ids)) | {"id": id})
        assert answer.json()["remembered"] == 1
        self._ids.append(id)
        self.controls()

    def label(self) -> None:
        if not self._ids:
            return
        was_paused, end = self.is_paused, self.seq
        ids = self._chance.choices(self._ids[-6:], k=self._chance.choice([1, 1, 1, 2, 4]))
        pairs = [(id, self._chance.choice(self._labels)) for id in ids]
        labels = [{"id": id, "y": y} for id, y in pairs]
        answer = self.post("labels?revise=true", {"labels": labels})
        got = answer.json()
        if not got.get("count"):  # all of them are known, or all set aside
            assert answer.status_code == 200 or was_paused, got
        newest = {id: y for _, (id, y) in sorted(self.rows.items())}
        new = []
        for id, y in pairs:
            if newest.get(id) != y:
                new.append((id, y))
                self.done.add("revision" if id in newest else "first label")
            newest[id] = y
        self.put(list(range(end + 1, end + 1 + len(new))), new, was_paused)

    def version(self) -> None:
        name = self._chance.choice("uvw")
        self.client = self._chance.choice(self.clients)
        self.client.delete(f"/models/m/versions/{name}")
        answer = self.client.post("/models/m/versions", json={"name": name})
        assert answer.status_code == 201, answer.text
        self._versions[name] = self.learned

    def roll_back(self) -> None:
        if self._versions:
            name = self._chance.choice(list(self._versions))
            if self.learned - self._versions[name]:
                self.done.add("rollback")
            assert self.post("rollback", {"version": name}).status_code == 200
            self.learned = self._versions[name]
            self.controls()

    def resume(self) -> None:
        if self.is_paused:
            pause = paused(self.client)
            rows = next(self._ways)
            assert self.post(f"resume?rows={rows}").status_code == 200
            if rows == "learn":
                self.learned = self.learned | {at for at in self.rows if at > pause["held_from"]}
            self.done.add(rows)
            self.controls()

    def step(self) -> None:
        choice = self._chance.choices(
            [self.label, self.remember, self.learn, self.version, self.roll_back, self.resume],
            [8, 4, 3, 2, 3, 8],
        )
        choice[0]()

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.check()

    @property
    def labels(self) -> dict[str, Any]:
        """The label of each id that the state has learned last."""
        return {self.rows[seq][0]: self.rows[seq][1] for seq in sorted(self.learned)}

    def check(self) -> None:
        """Label statistics and counted rows are those of the last labels in the state."""
        self.client.get("/models/m").raise_for_status()
        replica, labels = replica_of(self.client), self.labels
        assert replica.progress.summary()["rows"] == len(labels) and not replica.rejected
        learner: Any = replica.learner
        totals = learner.history.state()["totals"]
        of_card = defaultdict(list)
        for id, y in labels.items():
            of_card[int(id[1:]) % CARDS].append(y)
        names = learner.history._classes or (None,)
        for total, name in zip(totals[1:], names, strict=False):
            mean = mean_of(list(labels.values()), name)
            assert math.isclose(total, mean, rel_tol=1e-9, abs_tol=1e-9)
            for card in self._chance.sample(range(CARDS), 1):
                ys, shown = of_card[card], columns(self.client, row(card))
                assert math.isclose(shown["card.label_count.1000d"], len(ys), rel_tol=1e-9)
                smooth = mean + len(ys) / (len(ys) + 1) * (mean_of(ys, name) - mean)
                ending = "" if name is None else f"={json.loads(name)}"
                column = shown.get(f"card.label_mean.1000d{ending}", 0.0)
                assert math.isclose(column, smooth, rel_tol=1e-9, abs_tol=1e-9)
        assert totals[0] == len(labels)


def mean_of(labels: list[Any], name: str | None) -> float:
    numbers = [float(y) if name is None else float(json.dumps(y) == name) for y in labels]
    return math.fsum(numbers) / len(numbers)


def row(number: int) -> dict[str, Any]:
    return {"at": AT, "card": f"c{number % CARDS}", "amount": 1.0 + number % 5}


def columns(client: Any, sample: dict[str, Any]) -> dict[str, float]:
    model = client.app._registry.find("m")
    body = json.dumps(sample).encode()
    parsed = parse_body(model.row_schema, "application/json", body, labelled=False)
    served = model.replica.learner.as_served(as_batch([parsed.rows]))
    names = model.replica.learner.history.names
    name_of = dict(zip(hash_names(names, BITS).tolist(), names, strict=True))
    entries = zip(served.indices.tolist(), served.values.tolist(), strict=True)
    return {name_of[at]: value for at, value in entries if at in name_of}


@pytest.mark.parametrize(
    ("task", "store"), [*product(LABELS, ["sqlite"]), ("binary", "redis")], indirect=["store"]
)
def test_label_statistics_and_metrics_are_those_of_the_last_labels_in_the_state(
    serve, store, tmp_path, task: str
):
    clients = [serve(store=store, snapshot_every=every) for every in (20, 35)]
    answer = clients[0].put("/models/m", json=SPEC | {"task": task})
    assert answer.status_code == 201, answer.text
    states = States(clients, random.Random(task), task)
    for _ in range(CARDS + 1):
        states.learn()
    states.play(STEPS)
    while not states.done >= {"first label", "revision", "rollback", "pause", "learn", "drop"}:
        states.play(5)
    end = max(replica_of(client).seq for client in clients)
    until(lambda: all(replica_of(client).seq == end for client in clients))
    one, other = (replica_of(client).capture().state_digest() for client in clients)
    assert one == other == loaded(store).capture().state_digest() == replayed(store)
    copy = f"sqlite:///{tmp_path / 'copy.db'}"
    asyncio.run(copy_store(store, copy))
    states.clients = [serve(store=copy)]
    states.play(STEPS // 5)


async def copy_store(store: str, copy: str) -> None:
    journal = await open_journal(copy)
    try:
        await restore(journal, True, io.BytesIO(await archive_of(store)), lambda line: None)
    finally:
        await journal.close()


def replayed(store: str) -> str:
    async def run() -> str:
        journal = await open_journal(store)
        try:
            record = await journal.get("m")
            return (await state_at(ALL, journal, record, record.seq)).capture().state_digest()
        finally:
            await journal.close()

    return asyncio.run(run())


def test_absent_seqs_are_those_of_a_set():
    chance = random.Random(1)
    for _ in range(200):
        absent, wanted, seq = AbsentSeqs(), set[int](), 0
        for _ in range(chance.randrange(12)):
            if chance.random() < 0.2:
                after = chance.randint(0, seq)
                absent.learn_after(after)
                wanted = {one for one in wanted if one <= after}
                continue
            first = chance.randint(max(wanted, default=0) + 1, seq + 1)
            seq += chance.randrange(3)
            absent.add(first, seq)
            wanted |= set(range(first, seq + 1))
        assert {one for one in range(-2, seq + 3) if one in absent} == wanted
        restored = AbsentSeqs()
        arrays = absent.arrays()
        assert bool(arrays) == bool(wanted)
        restored.restore({name.removeprefix("absent."): one for name, one in arrays.items()})
        assert restored._spans == absent._spans


def test_the_oldest_spans_are_forgotten():
    absent = AbsentSeqs()
    for number in range(MAX_SPANS + 5):
        absent.add(2 * number + 1, 2 * number + 1)
    assert 9 not in absent and 11 in absent and len(absent.arrays()["absent.spans"]) == MAX_SPANS


def test_a_row_replaces_its_newest_label_in_the_state(subtests):
    absent = AbsentSeqs()
    absent.add(5, 9)
    cases: list[tuple[list, int, Any]] = [
        ([(4, 1.0)], 12, 1.0),
        ([(7, 1.0)], 12, None),
        ([(7, 1.0), (4, 2.0), (3, 3.0)], 12, 2.0),
        ([(-1, 1.0), (4, 2.0)], 12, 1.0),
        ([(-3, 1.0), (4, 2.0)], 12, 2.0),
        ([(-8, 1.0)], 12, 1.0),
        ([], 12, None),
    ]
    for earlier, seq, label in cases:
        with subtests.test(f"{earlier} at {seq}"):
            assert absent.replaced([earlier], [seq]) == (None if label is None else [label])
    both = absent.replaced([row for row, _, _ in cases], [seq for _, seq, _ in cases])
    assert repr(both) == repr([math.nan if y is None else y for _, _, y in cases])
    assert absent.replaced([[(7, "a")], [(4, "b")]], [12, 13]) == ["", "b"]


@pytest.mark.parametrize(
    "spans",
    [[[0, 2]], [[3, 2]], [[1, 2], [3, 4]], [[4, 5], [1, 2]], [[1, 2, 3]], [1, 2], [[1.0, 2.0]]],
)
def test_damaged_spans_are_refused(spans: Any):
    with pytest.raises(CorruptState):
        AbsentSeqs().restore({"spans": np.array(spans)})

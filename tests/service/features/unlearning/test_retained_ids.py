"""Ids of retained rows, and the control that unlearns one: in step with the learner, everywhere."""

import asyncio
import hashlib
from typing import Any

import numpy as np
import pytest

from dualstream.service.codecs import ListedRows
from dualstream.service.features.unlearning.state import RetainedIds, digest_of
from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.requests import ControlRequest, Request
from dualstream.service.replica.row_ids import RowIds
from dualstream.service.replica.state import by_prefix
from dualstream.solvers import Batch, CorruptState, make_learner, resolve_spec
from tests.service.features.unlearning.support import key_of, unlearning
from tests.service.replica.control_bench import Bench, run
from tests.service.support import bits

DIM = 5
ANY = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": DIM}, "retain": 8}
# Labels are so large that a long row is rejected: its loss would not be finite.
MODEL = ANY | {"task": "regression"}
SPECS = {
    "infinite": MODEL,
    "sliding": MODEL | {"average": {"kappa": 0.9}, "window": {"kind": "sliding", "length": 6}},
    "multiclass": ANY | {"task": "multiclass", "window": "exponential"},
}


def listed(ids: list[str | None], task: str, weights: list[float] | None = None) -> ListedRows:
    """Rows that depend on their ids alone; those called `huge` are rejected."""
    values: list[float] = []
    for id_ in ids:
        seed = int.from_bytes(hashlib.sha256(str(id_).encode()).digest()[:4], "little")
        row = np.random.default_rng(seed).standard_normal(DIM)
        values += ((row * 0 + 1e100) if str(id_).startswith("huge") else row).tolist()
    n = len(ids)
    labels: Any = [float(len(str(id_)) % 2) for id_ in ids]
    if task == "multiclass":
        labels = ["ab"[int(label)] for label in labels]
    elif task == "regression":
        labels = [1e99 * (1.0 + label) for label in labels]
    return ListedRows(
        [DIM * i for i in range(n + 1)],
        [*range(DIM)] * n,
        values,
        labels,
        weights or [1.0] * n,
        DIM,
        ids={index: id_ for index, id_ in enumerate(ids) if id_ is not None},
    )


def learn(bench: Bench, *ids: str | None, weights: list[float] | None = None) -> Any:
    rows = listed(list(ids), bench.replica.spec["task"], weights)
    return bench.committer.submit(Request.of(rows, None, None))


def without(spec: Any, steps: list[Any]) -> Any:
    """A learner that unlearns rows given by age."""
    learner = make_learner(resolve_spec(spec))
    for step in steps:
        if isinstance(step, int):
            learner.unlearn(step)
        else:
            rows = listed(step, spec.get("task", "binary"))
            labels, classes = rows.labels, ()
            if spec.get("task") == "multiclass":
                classes = tuple(dict.fromkeys(labels))
                labels = [float(classes.index(label)) for label in labels]
            x = np.array(rows.values).reshape(-1, DIM)
            dense = Batch.from_dense(x, np.array(labels))
            learner.learn(
                Batch(
                    dense.indptr, dense.indices, dense.values, dense.labels, dense.weights,
                    DIM, classes,
                )
            )  # fmt: skip
    return {f"learner.{name}": array.tobytes() for name, array in learner.state().items()}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_row_of_an_id_is_located_after_any_later_rows(store, spec):
    async def scenario(bench: Bench) -> None:
        await learn(bench, "one", None, "three")
        await learn(bench, "four", "huge", "six", weights=[1.0, 1.0, 0.0])
        receipt = await bench.order(unlearning("one"))
        assert receipt.control_outcome.refusal is None and receipt.position.seq == 7
        await asyncio.gather(learn(bench, "eight"), learn(bench, None, None))
        assert (await bench.order(unlearning("three"))).control_outcome.refusal is None
        assert (await bench.order(unlearning("eight"))).control_outcome.refusal is None
        await learn(bench, "last")
        # Three of one, -, three, four; six has weight 0 and the huge row is rejected.
        is_long = spec.get("task") == "regression"
        assert bench.replica.rejected == is_long
        steps = [
            ["one", None, "three", "four"] + ["huge"] * (not is_long),
            4 - is_long,
            ["eight", None, None],
            5 - is_long,
            2,
            ["last"],
        ]
        result = bits(bench.replica)
        for name, array in without(spec, steps).items():
            if not name.endswith("samples"):
                assert result[name] == array, name
        retained = bench.replica.parts.find(RetainedIds)
        assert retained.seqs(digest_of(key_of("four"))) == [4]
        assert retained.unlearned_at(digest_of(key_of("three"))) == 11
        assert retained.forgotten_seq == 12

    run(store, scenario, spec=spec)


def test_what_is_not_retained_is_refused_by_every_replica(store):
    async def scenario(bench: Bench) -> None:
        await learn(bench, "old", "zero", "huge", weights=[1.0, 0.0, 1.0])
        await learn(bench, *(f"row {i}" for i in range(8)))
        before = bits(bench.replica)["learner.v"]
        for id_ in ("old", "zero", "huge", "never"):
            outcome = (await bench.order(unlearning(id_))).control_outcome
            assert outcome.refusal == "the sample's row is not retained"
        assert bits(bench.replica)["learner.v"] == before
        assert bench.replica.refused_controls == 4
        assert (await bench.order(unlearning("row 0"))).control_outcome.refusal is None
        assert (await bench.order(unlearning("row 0"))).control_outcome.refusal is not None

    run(store, scenario, spec=MODEL)


def test_a_model_that_cannot_refuses(store):
    spec = {name: value for name, value in ANY.items() if name != "retain"}
    spec |= {"algorithm": "sgd"}

    async def scenario(bench: Bench) -> None:
        await learn(bench, "one")
        outcome = (await bench.order(unlearning("one"))).control_outcome
        assert outcome.refusal.startswith("sgd keeps no dual variables")
        assert not any(name.startswith("retained") for name in bits(bench.replica))

    run(store, scenario, spec=spec)


def test_a_replica_that_reads_and_a_restored_one_know_the_ids(store):
    async def scenario(bench: Bench) -> None:
        for first in range(0, 12, 3):
            await learn(bench, *(f"row {i}" for i in range(first, first + 3)))
        # As another process would: the replica reads rows and control in one go.
        for id_ in ("other", "row 9"):
            order = ControlRequest.of(unlearning(id_))
            parts = Request.of(listed([id_], "regression"), None, None).parts
            await bench.append(*(parts if id_ == "other" else order.parts))
        await bench.committer.refresh()
        retained = bench.replica.parts.find(RetainedIds)
        assert retained.unlearned_at(digest_of(key_of("row 9"))) == 14
        assert retained.seqs(digest_of(key_of("other"))) == [13]
        other = RetainedIds(bench.replica.spec)
        other.restore(by_prefix(retained.arrays()), FeatureNames())
        for name, array in retained.arrays().items():
            assert other.arrays()[name].tobytes() == array.tobytes(), name

    run(store, scenario, spec=MODEL)


def batch_of(n: int) -> Batch:
    return Batch.from_dense(np.random.default_rng(0).standard_normal((n, DIM)), np.ones(n))


def test_a_batch_of_ids_is_its_rows_one_by_one():
    spec = resolve_spec(ANY)
    x, n = np.random.default_rng(0).standard_normal((60, DIM)), 60
    weights = np.where(np.arange(n) % 5 == 3, 0.0, 1.0)
    plain = Batch.from_dense(x, np.where(x[:, 0] > 0, 1.0, -1.0))
    batch = Batch(plain.indptr, plain.indices, plain.values, plain.labels, weights, DIM)
    outcome = make_learner(spec).learn(batch)
    outcome.rejected[::7] = True  # as a learner might say
    all_named = [(seq, key_of(str(seq))) for seq in range(1, n + 1) if seq % 3]
    whole, parts = RetainedIds(spec), RetainedIds(spec)
    whole.on_ids(RowIds.of(all_named), batch, 1, outcome)
    for i in range(n):
        mine = RowIds.of([one for one in all_named if one[0] == i + 1])
        parts.on_ids(
            mine if i % 2 else RowIds.of(all_named), batch[i : i + 1], i + 1, outcome[i : i + 1]
        )
    assert len(whole.arrays()["retained.seqs"]) > 3
    for name, array in whole.arrays().items():
        assert parts.arrays()[name].tobytes() == array.tobytes(), name


def test_all_rows_of_one_id_are_unlearned_or_none():
    # Delta is 1e-300 without the newer rows, and no weight finite.
    spec = resolve_spec(ANY | {"rho": 1e-10})
    weights = np.array([1e-300, 1.0, 1.0])
    plain = batch_of(3)
    batch = Batch(plain.indptr, plain.indices, plain.values, plain.labels, weights, DIM)
    batch = batch.take([1, 0, 2])
    for named, is_done in ((("a", "b", "a"), False), (("a", "b", "c"), True)):
        learner, ids = make_learner(spec), RetainedIds(spec)
        outcome = learner.learn(batch)
        ids.on_ids(RowIds.of([(s, key_of(i)) for s, i in enumerate(named, 1)]), batch, 1, outcome)
        before = {name: array.tobytes() for name, array in learner.state().items()}
        seqs = ids.seqs(digest_of(key_of("a")))
        assert seqs == ([1] if is_done else [1, 3])
        try:
            ids.unlearn(learner, digest_of(key_of("a")), 4)
            assert is_done and ids.forgotten_seq == 4 and learner.retained == 2
        except Exception:
            assert not is_done and ids.seqs(digest_of(key_of("a"))) == seqs
            assert {n: a.tobytes() for n, a in learner.state().items()} == before


def test_damaged_ids_are_refused():
    spec = resolve_spec(ANY)
    ids, batch = RetainedIds(spec), batch_of(4)
    ids.on_ids(
        RowIds.of([(s, key_of(str(s))) for s in range(1, 5)]),
        batch,
        1,
        make_learner(spec).learn(batch),
    )
    state = ids.arrays()
    for name in state:
        damaged = [{k: v for k, v in state.items() if k != name}]
        damaged.append(state | {name: np.zeros((9, 3))})
        for one in damaged:
            with pytest.raises(CorruptState):
                RetainedIds(spec).restore(by_prefix(one), FeatureNames())
    RetainedIds(spec).restore(by_prefix({}), FeatureNames())
    assert RetainedIds(spec).arrays() == {}

"""Multiclass portfolios: `{"task": "multiclass"}`, its accuracy and its cost."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from dualstream.solvers import dump, make_learner, make_progressive, resolve_spec
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.portfolio.classes import FULL
from dualstream.solvers.portfolio.presets import DROPPED
from dualstream.solvers.protocols.member_learner import (
    member_learner,
    members_over_classes,
    shares_of,
)
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.class_names import class_indices, class_text
from tests.solvers.support import as_bytes

SIDE, CLASSES = 8, 10
N = 60 if DISABLED else 1200
SPEC = {
    "members": "eight",
    "task": "multiclass",
    "features": {"kind": "indexed", "dim": SIDE * SIDE},
    "retain": 50,
}


def digits(n=N, seed=0, late=None):
    """Pictures of 10 shapes, of grey values from 0 to 16; one of them only from row `late` on."""
    rng = np.random.default_rng(7)
    shapes = 16.0 * (rng.random((CLASSES, SIDE * SIDE)) < 0.35)
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, CLASSES, n)
    if late is not None:
        kinds[:late] %= CLASSES - 1
    noise = rng.normal(0.0, 5.0, (n, SIDE * SIDE))
    x = np.clip(np.round(shapes[kinds] + noise), 0.0, 16.0)
    positions, classes = class_indices([class_text(int(kind)) for kind in kinds])
    return Batch.from_dense(x, positions).with_labels(positions, classes)


def test_the_task_alone_is_a_portfolio_for_each_class():
    spec = resolve_spec({"task": "multiclass"})
    assert spec["algorithm"] == "portfolio" and spec["members"] == "full"
    assert spec["features"]["kind"] == "hashed"
    learner = make_learner(spec)
    assert member_learner(learner) is None
    dim = 2 ** spec["features"]["bits"]
    batch = digits(20)
    wide = Batch(
        batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, dim, batch.classes
    )
    assert np.isfinite(learner.learn(wide).losses).all()
    assert set(learner.classes) == set(batch.classes)


def test_digits_are_shown_apart_from_the_start():
    batch, learner = digits(), make_learner(SPEC)
    progress = make_progressive(learner.spec)
    outcome = learner.learn(batch)
    progress.count(batch, outcome)
    assert not outcome.rejected.any()
    got = [outcome.classes[position] if position >= 0 else None for position in outcome.predicted]
    mine = [batch.classes[int(label)] for label in batch.labels]
    wrong = np.array([a != b for a, b in zip(got, mine, strict=True)])
    assert progress.summary()["since_start"]["error_rate"] == pytest.approx(wrong.mean())
    assert wrong[: N // 2].mean() < 0.9
    if not DISABLED:
        assert wrong[:200].mean() < 0.35 and wrong[-300:].mean() < 0.03
        assert outcome.log_losses[-300:].mean() < 0.2


@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
def test_a_class_met_late_is_learned_as_if_it_had_been_known():
    late = 900
    batch, learner = digits(late=late), make_learner(SPEC)
    outcome = learner.learn(batch)
    text = class_text(CLASSES - 1)
    mine = np.array([batch.classes[int(label)] == text for label in batch.labels])
    first = int(np.argmax(mine))
    assert first >= late and learner.classes[-1] == text
    # Without the new start after broken first rows, which the classes have in common.
    binary = make_learner(SPEC | {"task": "binary"})._learner
    alone = binary.learn(batch.with_labels(np.where(mine, 1.0, -1.0)))
    scores = learner.predict_classes(batch[:9]).scores
    assert np.array_equal(scores[:, -1], binary.predict(batch[:9]))
    assert dump(learner._rest.learners[-1].state(), {}) == dump(binary.state(), {})
    chosen = outcome.predicted[first + 1 :] == CLASSES - 1
    assert not (outcome.predicted[: first + 1] == CLASSES - 1).any()
    # Nearly every row of the new class is recognised after five of them.
    seen = np.flatnonzero(mine[first + 1 :])[5:]
    assert chosen[seen].mean() > 0.8 and len(seen) > 15
    assert np.mean(alone.scores[first + 1 :][seen] >= 0.0) > 0.5


def test_state_and_memory_are_those_of_one_portfolio_a_class_and_one_for_the_rest():
    batch, learner = digits(), make_learner(SPEC)
    learner.learn(batch)
    binary = make_learner(SPEC | {"task": "binary"})
    binary.learn(batch.with_labels(np.where(batch.labels == 0.0, 1.0, -1.0)))
    one = sum(array.nbytes for array in binary.state().values())
    whole = sum(array.nbytes for array in learner.state().values())
    assert len(learner.classes) == CLASSES
    assert whole == pytest.approx((CLASSES + 1) * one, rel=0.02)
    before = as_bytes(learner.state())
    got = learner.predict_classes(batch)
    assert got.scores.shape == (N, CLASSES)
    assert got.probabilities.sum(axis=1) == pytest.approx(np.ones(N))
    assert as_bytes(learner.state()) == before


@pytest.mark.skipif(DISABLED, reason="time is that of the compiled learner")
def test_a_row_costs_what_it_costs_its_portfolios():
    batch = digits()
    binary = make_learner(SPEC | {"task": "binary"})
    learner = make_learner(SPEC)
    learner.learn(batch)
    signed = batch.with_labels(np.where(batch.labels == 0.0, 1.0, -1.0))
    binary.learn(signed)

    def least(learn, rows):
        times = []
        for _ in range(5):
            begun = time.thread_time()  # CPU time: other processes may use the cores
            learn(rows)
            times.append(time.thread_time() - begun)
        return min(times)

    one, whole = least(binary.learn, signed), least(learner.learn, batch)
    # 11 portfolios; the rest of the work per row is small in comparison.
    assert 4.0 * one < whole < 30.0 * one, whole / one


def many_classes(n=90, classes=14):
    """Rows of classes that appear one after the other."""
    rng = np.random.default_rng(3)
    kinds = rng.integers(0, 1 + np.minimum(np.arange(n) // 3, classes - 1))
    x = rng.normal(size=(classes, 5))[kinds] + 0.3 * rng.normal(size=(n, 5))
    indices, names = class_indices([class_text(f"c{kind}") for kind in kinds])
    return Batch.from_dense(x, indices).with_labels(indices, names)


def of_many(members):
    spec = {"members": members, "task": "multiclass", "features": {"kind": "indexed", "dim": 5}}
    return make_learner(resolve_spec(spec))


def names_of_classes(learner):
    """The members of each class's portfolio, and of that for classes without rows."""
    state, names = learner.state(), []
    for owner in ("none", *map(str, range(len(learner.classes)))):
        about = json.loads(state[f"{owner}.about"].tobytes())
        names.append([one["spec"]["name"] for one in about["members"]])
    return names


@pytest.mark.parametrize("members", ["fast", "full"])
def test_portfolios_of_many_classes_drop_members_one_portfolio_a_row(members):
    rows = many_classes()
    first = 1 + int(np.flatnonzero(rows.labels == FULL)[0])
    learner = of_many(members)
    learner.learn(rows[: first - 1])
    assert len(learner.classes) == FULL
    full = names_of_classes(learner)
    assert all(names == full[0] for names in full) and set(full[0]) & DROPPED
    kept = [name for name in full[0] if name not in DROPPED]
    assert {"prior", "newton-row", "net", "stack"} <= set(kept)
    for row in range(FULL + 1):
        assert names_of_classes(learner)[0] == full[0]
        unweighted = replace(rows[first + row : first + row + 1], weights=np.zeros(1))
        learner.learn(unweighted)
        learner.learn(rows[first + row - 1 : first + row])
        _, *classes = names_of_classes(learner)
        full_classes = [names == full[0] for names in classes]
        # The oldest classes first; new classes never have the members.
        assert full_classes.index(False) == 0 and sum(full_classes) == max(0, FULL - 1 - row)
        shares = shares_of(learner)
        assert shares.keys() == set().union(*classes)
        assert sum(shares.values()) == pytest.approx(1.0)
        shown = {one.name: one.weight for one in members_over_classes(learner)}
        assert shown == pytest.approx(shares)
    assert all(names == kept for names in names_of_classes(learner))


def test_a_list_of_members_keeps_all_of_them_with_many_classes():
    listed = [{"kind": "prior"}, {"algorithm": "net", "units": [4, 4]}, {"algorithm": "splines"}]
    learner = of_many(listed)
    learner.learn(many_classes())
    assert {len(names) for names in names_of_classes(learner)} == {3}
    # No member can be added to them, so no rows are retained for it.
    assert not any(len(a) for name, a in learner.state().items() if name.endswith("rows.labels"))


@pytest.mark.parametrize("cut", [1, 7])
def test_many_classes_are_the_same_bits_in_batches_and_after_a_restore(cut):
    rows = many_classes()
    whole, parts = of_many("full"), of_many("full")
    outcome = whole.learn(rows)
    assert len(whole.classes) > FULL + 1
    scores = []
    for first in range(0, len(rows), cut):
        part = rows[first : first + cut]
        result = parts.learn(part)
        scores.append(result.scores)
        if first % 7 == 0:
            parts, other = of_many("full"), parts
            parts.restore(other.state())
    np.testing.assert_array_equal(np.concatenate(scores), outcome.scores)
    assert dump(parts.state(), {}) == dump(whole.state(), {})

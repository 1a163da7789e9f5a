"""Guard against its definition: sums over all looks, without recursion, row by row."""

import math
from typing import Any

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, InvalidSpec, dump, make_learner, resolve_spec
from dualstream.solvers.evaluation.guard.monitor import Guard
from tests.solvers.specs import FEATURES, SPECS, stream

FIELDS = {"mode": "warn", "every": 4, "patience": 2, "history": 40, "after": 24, "norm": 1.5}
N = 240


def trips_by_definition(values: list[float], times: float) -> list[tuple[int, int]]:
    """The looks that trip, and the last good one before each; the history restarts after a trip."""
    slowest = 1.0 - FIELDS["every"] / FIELDS["history"]
    good: list[float] = []
    results, bad, calm = [], 0, -1
    for look, value in enumerate(values):
        limit = math.inf
        if len(good) >= FIELDS["after"] / FIELDS["every"]:
            fading = [min(slowest, k / (k + 1)) for k in range(1, len(good))]
            weights = [math.prod(fading[k:]) for k in range(len(good))]
            mean = np.average(good, weights=weights)
            deviation = math.sqrt(np.average((np.array(good) - mean) ** 2, weights=weights))
            limit = max(times * mean, mean + 4.0 * deviation) if mean else math.inf
        if value > limit:
            bad += 1
        else:
            good, bad, calm = [*good, value], 0, look
        if bad == 2:
            results.append((look, calm))
            good, bad, calm = [], 0, look
    return results


def norm_by_numpy(learner: Any) -> float:
    if hasattr(learner, "members"):
        parts = [learner.member_weights(view.name) for view in learner.members()]
    else:
        parts = [(learner.weights, getattr(learner, "intercepts", learner.intercept))]
    return float(np.sqrt(sum(np.sum(np.square(part)) for pair in parts for part in pair)))


def guarded(spec: dict[str, Any]) -> dict[str, Any]:
    has_norm = spec["algorithm"] != "semiparametric"
    has_norm = has_norm and (spec["algorithm"], spec.get("task")) != ("portfolio", "multiclass")
    return resolve_spec(spec | {"guard": FIELDS | ({} if has_norm else {"norm": None})})


def disturbed(spec: dict[str, Any]) -> Batch:
    """A stream whose labels are wrong for a while, and with long rows at another time."""
    batch = stream(spec, N)
    labels, values = batch.labels.copy(), batch.values.copy()
    labels[120:150] *= -1.0 if spec.get("task", "binary") == "binary" else -30.0
    values[batch.indptr[190] : batch.indptr[205]] *= 200.0
    return Batch(batch.indptr, batch.indices, values, labels, batch.weights, batch.dim)


# The first of each algorithm.
EACH = {spec["algorithm"]: name for name, spec in reversed(SPECS.items())}
EACH.pop("semiparametric")  # slow, and has no norm


@pytest.mark.parametrize("name", EACH.values())
def test_it_trips_where_the_definition_does_however_rows_are_cut(name):
    spec = guarded(SPECS[name])
    batch = disturbed(spec)
    seqs = 1000 + np.arange(N)
    learner, by_definition = make_learner(spec), {"loss": [], "norm": []}
    looks: list[int] = []
    losses: list[float] = []
    for row in range(N):
        outcome = learner.learn(batch[row : row + 1])
        losses += [] if outcome.rejected[0] else [min(outcome.losses[0], 1e100)]
        if len(losses) == FIELDS["every"]:
            by_definition["loss"].append(float(np.mean(losses)))
            by_definition["norm"].append(norm_by_numpy(learner))
            looks.append(int(seqs[row]))
            losses = []
    expected = [
        (looks[look], quantity, looks[calm])
        for quantity, values in by_definition.items()
        if spec["guard"][quantity] is not None
        for look, calm in trips_by_definition(values, spec["guard"][quantity])
    ]

    before = None
    for cuts in ([N], sorted(np.random.default_rng(0).integers(0, N + 1, 30).tolist()) + [N]):
        guard, learner, results, done = Guard(spec), make_learner(spec), [], 0
        for cut in cuts:
            while done < cut:
                some = batch[done : min(cut, done + guard.rows_to_look)]
                guard.count(learner.learn(some))
                done += len(some)
                for trip in guard.look(learner, int(seqs[done - 1])):
                    assert trip.value > trip.limit
                    results.append((trip.seq, trip.quantity, trip.calm_seq))
                    guard.reset(trip.seq, trip.quantity)
            # A copy of the state continues identically.
            state, guard = guard.state(), Guard(spec)
            guard.restore(state)
        assert sorted(results) == sorted(expected)
        assert before in (None, dump(guard.state(), {}))
        before = dump(guard.state(), {})
    if spec["algorithm"] in ("dual_ascent", "sgd", "passive_aggressive"):
        assert expected, "nothing has tripped: the stream is too tame"


def test_the_norm_of_a_wide_model_is_looked_at_less_often():
    wide = {"algorithm": "sgd", "features": {"kind": "indexed", "dim": 3000}}
    spec = resolve_spec(wide | {"guard": FIELDS})
    guard, learner = Guard(spec), make_learner(spec)
    batch = Batch.from_dense(np.ones((80, 3000)), np.ones(80))
    counts = []
    for first in range(0, 80, 4):
        guard.count(learner.learn(batch[first : first + 4]))
        guard.look(learner, first + 4)
        counts.append(int(guard.state()["norm_counts"][0]))
    # 3,001 numbers, 100 per row, 4 rows per look: every eighth look.
    assert counts == [1] * 8 + [2] * 8 + [3] * 4
    assert guard.state()["loss_counts"][0] == 20


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ("on", "/guard"),
        ({}, "/guard/mode"),
        ({"mode": "pause", "los": 2.0}, "/guard/los"),
        ({"mode": "pause", "loss": 0.5}, "/guard/loss"),
        ({"mode": "warn", "every": 0}, "/guard/every"),
        ({"mode": "warn", "every": 10, "history": 10}, "/guard/history"),
        ({"mode": "warn", "loss": None, "norm": None}, "/guard/loss"),
        (3, "/guard"),
    ],
)
def test_a_field_out_of_its_range_is_named(given, pointer):
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec({"algorithm": "sgd", **FEATURES, "guard": given})
    assert refused.value.field == pointer


def test_it_is_written_out_only_where_it_is_asked_for():
    plain = resolve_spec({"algorithm": "sgd", **FEATURES})
    assert "guard" not in plain
    for off in ("off", {"mode": "off", "loss": 3.0}):
        assert resolve_spec({"algorithm": "sgd", **FEATURES, "guard": off}) == plain
    result = resolve_spec({"guard": "pause"})
    assert result["algorithm"] == "portfolio" and resolve_spec(result) == result
    assert result["guard"] == {
        "mode": "pause", "loss": 2.0, "norm": 10.0, "deviations": 4.0,
        "every": 100, "patience": 2, "history": 10_000, "after": 1000,
    }  # fmt: skip
    classes = resolve_spec({"task": "multiclass", "guard": "warn"})
    assert classes["guard"]["norm"] is None
    member = {"members": [{"algorithm": "sgd", "guard": "warn"}], "features": result["features"]}
    with pytest.raises(InvalidSpec, match="guard"):
        resolve_spec({"algorithm": "portfolio", **member})


def test_a_damaged_state_is_refused():
    spec = guarded({"algorithm": "sgd", **FEATURES})
    state = Guard(spec).state()
    for name, wrong in (
        ("rows", np.array([5, 4, 0])),
        ("loss_history", np.zeros(2)),
        ("loss_since", np.array(np.nan)),
    ):
        with pytest.raises(CorruptState):
            Guard(spec).restore(state | {name: wrong})

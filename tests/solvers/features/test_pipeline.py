"""Feature stages in front of a learner keep the contract of a learner."""

import numpy as np
import pytest

from dualstream.solvers import (
    Batch,
    CorruptState,
    InvalidRow,
    InvalidSpec,
    Outcome,
    ShapeMismatch,
    make_learner,
    resolve_spec,
)
from dualstream.solvers.features.build import make_staged
from dualstream.solvers.online.dual_ascent.learner import DualAscent
from tests.solvers.staging import BalancedReference, NormReference, batch_of, rows_of
from tests.solvers.support import as_bytes, mixed_rows

STAGES = {
    "balanced": {"scaling": "balanced"},
    "balanced, running": {"scaling": "balanced", "norm": "running"},
    "counts, row": {"scaling": {"kind": "balanced", "moments": False}, "norm": "row"},
    "running": {"norm": "running"},
}
MAPS = {
    "fourier": {"map": {"kind": "fourier", "components": 20, "gamma": 0.1}},
    "balanced, fourier, row": {
        "scaling": "balanced",
        "map": {"kind": "fourier", "components": 20, "gamma": 0.1},
        "norm": "row",
    },
}
LANDMARKS = {
    "nystroem": {"map": {"kind": "nystroem", "components": 30, "gamma": 0.1}},
    "balanced, nystroem, running": {
        "scaling": "balanced",
        "map": {"kind": "nystroem", "components": 30, "gamma": 0.1},
        "norm": "running",
    },
}
ALL = STAGES | MAPS | LANDMARKS


def spec_of(stages, **fields):
    spec = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 8}}
    return spec | ALL.get(stages, {}) | fields


def same_outcome(outcome, other):
    for name in ("scores", "losses", "updated", "rejected"):
        assert getattr(outcome, name).tobytes() == getattr(other, name).tobytes(), name


@pytest.mark.parametrize("stages", STAGES)
def test_learner_sees_the_rows_of_the_definition(stages):
    batch, spec = mixed_rows(300), resolve_spec(spec_of(stages))
    rows = rows_of(batch)
    if spec["scaling"] != "none":
        scaling = BalancedReference(0.25, spec["scaling"]["moments"])
        rows = [scaling.scale(row) for row in rows]
    if spec["norm"] != "none":
        norm = NormReference(spec["norm"])
        rows = [norm.scale(row) for row in rows]
    plain = make_learner(spec_of(None))
    expected = plain.learn(batch_of(rows, 8, batch.labels))
    learner = make_learner(spec)
    assert learner.spec == spec
    outcome = learner.learn(batch)
    assert outcome.scores == pytest.approx(expected.scores, rel=1e-9, abs=1e-12)
    assert learner.weights == pytest.approx(plain.weights, rel=1e-9)
    assert learner.intercept == pytest.approx(plain.intercept, rel=1e-9)
    assert learner.certificate().dual == pytest.approx(plain.certificate().dual, rel=1e-9)
    assert (learner.samples, learner.nonzeros) == (300, plain.nonzeros)
    assert learner.probabilities(np.zeros(1)) == [0.5]


@pytest.mark.parametrize("stages", ALL)
def test_a_batch_is_its_rows_one_by_one(stages):
    batch = mixed_rows(200)
    batch.weights[7:12] = 0.0
    whole, single = make_learner(spec_of(stages)), make_learner(spec_of(stages))
    outcome = whole.learn(batch)
    for i in range(len(batch)):
        before = as_bytes(single.state())
        score = single.predict(batch[i : i + 1])
        assert as_bytes(single.state()) == before
        one = single.learn(batch[i : i + 1])
        same_outcome(one, outcome[i : i + 1])
        assert one.scores.tobytes() == score.tobytes()
    assert as_bytes(whole.state()) == as_bytes(single.state())


@pytest.mark.parametrize("stages", ALL)
def test_restored_learner_continues(stages):
    batch = mixed_rows(200)
    learner, other = make_learner(spec_of(stages)), make_learner(spec_of(stages))
    learner.learn(batch[:90])
    other.learn(batch[50:70])
    other.restore(learner.state())
    same_outcome(learner.learn(batch[90:]), other.learn(batch[90:]))
    assert as_bytes(learner.state()) == as_bytes(other.state())


@pytest.mark.parametrize("stages", STAGES | MAPS)
def test_a_row_of_weight_0_changes_no_stage(stages):
    batch = mixed_rows(60)
    batch.weights[30:50] = 0.0
    learner, other = make_learner(spec_of(stages)), make_learner(spec_of(stages))
    learner.learn(batch)
    other.learn(Batch.concat([batch[:30], batch[50:]]))
    assert learner.samples == 60 and other.samples == 40
    left, right = as_bytes(learner.state()), as_bytes(other.state())
    assert left.pop("core.samples") != right.pop("core.samples")
    assert left == right


class Picky:
    """A learner that rejects rows with label 99 and delegates all others."""

    def __init__(self, spec):
        self._learner = DualAscent(spec)

    def __getattr__(self, name):
        return getattr(self._learner, name)

    def learn(self, batch):
        good = batch.labels != 99.0
        learned = self._learner.learn(batch.take(good))
        n = len(batch)
        scores, losses = np.full(n, np.nan), np.full(n, np.nan)
        updated = np.zeros(n, np.bool_)
        scores[good], losses[good], updated[good] = learned.scores, learned.losses, learned.updated
        return Outcome(scores, losses, updated, ~good)


@pytest.mark.parametrize("stages", STAGES | MAPS)
@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 55, 56, 57], [20, 21, 22, 90], list(range(1, 120))])
def test_a_rejected_row_leaves_no_trace_in_any_stage(stages, cuts):
    positions = [20, 21, 55, 56, 57, 58, 90, 119]
    spec = resolve_spec(spec_of(stages, task="regression"))
    batch = mixed_rows(120)
    batch.labels[positions] = 99.0
    learner, other = make_staged(spec, Picky), make_learner(spec)
    outcomes = []
    for begin, end in zip([0, *cuts], [*cuts, 120], strict=True):
        outcomes.append(learner.learn(batch[begin:end]))
    outcome = Outcome.joined(outcomes)
    assert np.flatnonzero(outcome.rejected).tolist() == positions
    good = np.delete(np.arange(120), positions)
    expected = other.learn(batch.take(good))
    assert outcome.scores[good].tobytes() == expected.scores.tobytes()
    assert np.isnan(outcome.scores[positions]).all()
    assert as_bytes(learner.state()) == as_bytes(other.state())


@pytest.mark.parametrize("stages", ALL)
@pytest.mark.parametrize("rows", [0, 20, 50])
def test_an_unknown_label_is_found_before_any_row_is_learned(stages, rows):
    learner = make_learner(spec_of(stages))
    learner.learn(mixed_rows(50)[:rows])
    before = as_bytes(learner.state())
    batch = mixed_rows(50, seed=1)
    batch.labels[40] = 3.0
    with pytest.raises(InvalidRow, match="row 40"):
        learner.learn(batch)
    assert as_bytes(learner.state()) == before
    with pytest.raises(ShapeMismatch, match="rows of width 3 for a model of width 8"):
        learner.learn(Batch.from_dense([[1, 2, 3]], [1]))


@pytest.mark.parametrize("stages", ALL)
@pytest.mark.parametrize("rows", [0, 20, 50])
def test_a_damaged_state_changes_nothing(stages, rows):
    learner = make_learner(spec_of(stages))
    learner.learn(mixed_rows(50)[:rows])
    before = learner.state()
    for name in before:
        missing = {other: array for other, array in before.items() if other != name}
        for damaged in (missing, before | {name: np.zeros((3, 3, 3))}):
            with pytest.raises(CorruptState):
                learner.restore(damaged)
            assert as_bytes(learner.state()) == as_bytes(before)


def test_input_is_not_changed():
    batch = mixed_rows(50)
    before = [getattr(batch, name).tobytes() for name in ("indptr", "indices", "values", "labels")]
    learner = make_learner(spec_of("balanced, running"))
    learner.learn(batch)
    learner.predict(batch)
    after = [getattr(batch, name).tobytes() for name in ("indptr", "indices", "values", "labels")]
    assert after == before


def test_hashed_features_have_the_width_of_their_bits():
    learner = make_learner({"features": {"kind": "hashed", "bits": 4}, "scaling": "balanced"})
    assert learner.spec["features"] == {"kind": "hashed", "bits": 4}
    learner.learn(Batch.from_dense(np.eye(16), np.ones(16)))
    assert learner.weights.shape == (16,)
    assert resolve_spec({"features": "hashed"})["features"] == {"kind": "hashed", "bits": 18}
    plain = make_learner({"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 4}})
    assert plain.weights.shape == (16,)


def test_fields_of_the_stages_are_written_out():
    resolved = resolve_spec(spec_of("balanced", norm="row"))
    assert resolved["scaling"] == {"kind": "balanced", "power": 0.25, "moments": True}
    assert resolve_spec(resolved) == resolved
    assert resolve_spec(spec_of(None, scaling={"kind": "none"}))["scaling"] == "none"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"scaling": {"kind": "balanced", "power": 2}}, "/scaling/power"),
        ({"scaling": {"kind": "balanced", "moments": 1}}, "/scaling/moments"),
        ({"scaling": {"kind": "none", "power": 1}}, "/scaling/power"),
        ({"scaling": "standard"}, "/scaling"),
        ({"norm": "column"}, "/norm"),
        ({"map": {"kind": "fourier", "components": 0}}, "/map/components"),
        ({"map": {"kind": "nystroem", "components": 2049}}, "/map/components"),
        ({"map": {"kind": "nystroem", "seed": 1}}, "/map/seed"),
        ({"map": {"kind": "fourier", "gamma": 0}}, "/map/gamma"),
        ({"map": "spline"}, "/map"),
        ({"map": "fourier", "features": "hashed"}, "/map"),
        ({"features": {"kind": "hashed", "bits": 29}}, "/features/bits"),
        ({"features": {"kind": "hashed", "dim": 9}}, "/features/dim"),
    ],
)
def test_a_field_out_of_range_is_named(fields, field):
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec(spec_of(None) | fields)
    assert refused.value.field == field

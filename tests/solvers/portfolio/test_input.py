"""Refused specifications, and members that become non-finite on extreme rows."""

import json

import numpy as np
import pytest

from dualstream.solvers import (
    Batch,
    CorruptState,
    InvalidSpec,
    MemberError,
    dump,
    load,
    make_learner,
    resolve_spec,
)
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.portfolio import PRESETS
from tests.solvers.portfolio.support import (
    portfolio,
    regression_portfolio as number_portfolio,
    stream,
)
from tests.solvers.specs import SPECS, stream as spec_stream
from tests.solvers.support import content, relabelled, rescaled

N = 60 if DISABLED else 240
DIM = 12
FEATURES = {"kind": "indexed", "dim": DIM}

REFUSED = [
    ({"task": "regression"}, "/task", "left out, or the portfolio's: binary"),
    ({"task": "multiclass"}, "/task", "left out, or the portfolio's: binary"),
    ({"features": "hashed"}, "/features", "left out, or the portfolio's"),
    ({"features": {"kind": "indexed", "dim": 13}}, "/features", "left out, or the portfolio's"),
    ({"labels": ["a", "b"]}, "/labels", "left out"),
    ({"algorithm": "portfolio"}, "/algorithm", "portfolios cannot be nested"),
    ({"members": "eight"}, "/members", "it takes"),
    ({"algorithm": "gbdt"}, "/algorithm", "one of dual_ascent"),
    ({"kind": "gbdt"}, "/kind", "one of prior"),
    ({"kind": "portfolio"}, "/kind", "one of prior"),
    ({"kind": None}, "/kind", "one of prior"),
    ({"kind": []}, "/kind", "one of prior"),
    ({"kind": "prior", "loss": "logistic"}, "/loss", "it takes kind"),
    ({"kind": "prior", "base": "mean"}, "/base", "it takes kind"),
    ({"kind": "dual_ascent", "eta": 1}, "/eta", "it takes kind, loss, strength"),
    ({"kind": "dual_ascent", "retain": 10}, "/retain", "it takes kind, loss, strength"),
    ({"kind": "dual_ascent", "features": FEATURES}, "/features", "it takes"),
    ({"kind": "dual_ascent", "intercept": False}, "/intercept", "it takes"),
    ({"kind": "dual_ascent", "strength": 0}, "/strength", "a number in [1e-12, 1e12]"),
    ({"kind": "dual_ascent", "strength": True}, "/strength", "a number in [1e-12, 1e12]"),
    ({"kind": "dual_ascent", "strength": float("nan")}, "/strength", "a number in [1e-12"),
    ({"kind": "dual_ascent", "schedule": "linear"}, "/schedule", "one of constant, inverse_sqrt"),
    ({"kind": "dual_ascent", "loss": "squared"}, "/loss", "one of logistic, hinge"),
    ({"kind": "dual_ascent", "norm": "column"}, "/norm", "one of none, row, running"),
    (
        {"kind": "dual_ascent", "scaling": {"kind": "balanced", "power": 1.5}},
        "/scaling/power",
        "a number in [0, 1]",
    ),
    (
        {"kind": "dual_ascent", "loss": {"kind": "smooth_hinge", "gamma": 0}},
        "/loss/gamma",
        "a number in [1e-12, 1e12]",
    ),
    ({"kind": "spg_fixed_total", "schedule": "constant"}, "/schedule", "it takes"),
    ({"kind": "adagrad", "strength": 1}, "/strength", "it takes kind, loss, eta"),
    ({"kind": "adagrad", "eta": 0}, "/eta", "a number in [1e-12, 1e12]"),
    ({"kind": "diagonal_newton", "loss": "hinge"}, "/loss", "one of logistic"),
    ({"kind": "diagonal_newton", "gamma": 1.1}, "/gamma", "a number in [0, 1]"),
]


@pytest.mark.parametrize(("member", "field", "reason"), REFUSED)
def test_refused_member_is_named_with_its_field_and_the_reason(member, field, reason):
    whole = {"algorithm": "portfolio", "features": FEATURES, "members": [{"kind": "prior"}, member]}
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec(whole)
    assert refused.value.field == f"/members/1{field}"
    assert reason in str(refused.value)
    learner = portfolio(members=[{"kind": "prior"}])
    before = dump(learner.state(), {})
    with pytest.raises(InvalidSpec) as refused:
        learner.add_member(member)
    assert refused.value.field == field and reason in str(refused.value)
    assert dump(learner.state(), {}) == before


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"members": []}, "/members", "a list of 1 to 64 specs, got '0 specs'"),
        ({"members": [{"kind": "prior"}] * 65}, "/members", "a list of 1 to 64 specs, got '65"),
        ({"members": "nine"}, "/members", "one of eight, twelve, papers"),
        ({"members": "ten"}, "/members", "one of eight, twelve, papers"),
        ({"members": None}, "/members", "one of eight"),
        ({"members": ["eight"]}, "/members/0", "an object"),
        ({"task": "regression", "members": "eight"}, "/members", "one of ten"),
        (
            {"task": "regression", "members": [{"loss": "logistic"}]},
            "/members/0/loss",
            "one of squared",
        ),
        (
            {"task": "regression", "members": [{"kind": "adagrad", "loss": "hinge"}]},
            "/members/0/loss",
            "one of squared, huber",
        ),
        (
            {"members": [{"name": "a", "kind": "prior"}] * 2},
            "/members/1/name",
            "a name that no earlier member has",
        ),
        (
            {"members": [{"kind": "prior"}, {"name": "prior-1", "kind": "prior"}]},
            "/members/1/name",
            "a name that no earlier member has",
        ),
        ({"eta": 0}, "/eta", "a number in [1e-6, 1]"),
        ({"eta": 1.5}, "/eta", "a number in [1e-6, 1]"),
        ({"eta": float("nan")}, "/eta", "a number in [1e-6, 1]"),
        ({"share": -0.1}, "/share", "a number in [0, 0.5]"),
        ({"share": 0.6}, "/share", "a number in [0, 0.5]"),
        ({"share": False}, "/share", "a number in [0, 0.5]"),
        ({"retain": 0}, "/retain", "a whole number in [1, 100000]"),
        ({"retain": 10.0}, "/retain", "a whole number in [1, 100000]"),
        ({"retain": 100_001}, "/retain", "a whole number in [1, 100000]"),
        ({"scaling": "balanced"}, "/scaling", "it takes algorithm, task, members"),
        ({"intercept": True}, "/intercept", "it takes algorithm, task, members"),
    ],
)
def test_refused_portfolio_is_shown_the_field_and_the_reason(fields, field, reason):
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec({"algorithm": "portfolio", "features": FEATURES} | fields)
    assert refused.value.field == field
    assert reason in str(refused.value)


@pytest.mark.parametrize("name", ["", "a" * 65, "-a", ".", "a b", "a/b", "ä", "a\n", 3, True, []])
def test_names_that_no_address_could_hold_are_refused(name):
    member = {"name": name, "kind": "prior"}
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec({"algorithm": "portfolio", "members": [member]})
    assert refused.value.field == "/members/0/name"
    assert "1 to 64 characters of A-Z a-z 0-9 . _ -" in str(refused.value)
    with pytest.raises(InvalidSpec, match="1 to 64 characters"):
        portfolio().add_member(member)


def test_members_without_a_name_get_one_that_is_free():
    members = [{"name": "prior-2", "kind": "prior"}, {"kind": "prior"}]
    members.append({"name": None, "kind": "prior"})
    resolved = resolve_spec({"algorithm": "portfolio", "members": members})
    assert [one["name"] for one in resolved["members"]] == ["prior-2", "prior-1", "prior-3"]
    assert resolve_spec(resolved) == resolved


@pytest.mark.parametrize("own", [{}, {"algorithm": "dual_ascent"}, {"kind": "dual_ascent"}])
def test_dual_ascent_with_a_schedule_is_the_kind_of_that_name(own):
    spec = own | {"strength": 0.3, "schedule": "inverse_sqrt"}
    learner = portfolio(members=[spec])
    (view,) = learner.members()
    assert view.name == "dual_ascent-1"
    rising = next(one for one in PRESETS["papers"] if one["name"] == "dual-0.3-rising")
    assert view.spec == {field: value for field, value in rising.items() if field != "name"}
    assert learner.add_member(spec) == "dual_ascent-2"
    numbers = number_portfolio(8)
    with pytest.raises(InvalidSpec, match="kind must be left out"):
        numbers.add_member({"strength": 0.3, "schedule": "inverse_sqrt"})


def test_sixty_four_members_and_no_more():
    members = [{"kind": "dual_ascent", "strength": 1.0 + index} for index in range(63)]
    learner = portfolio(members=members)
    assert learner.add_member({"algorithm": "spg"}) == "spg-1"
    batch = stream(20)
    assert np.isfinite(learner.learn(batch).scores).all()
    before = content(learner)
    with pytest.raises(MemberError, match="there are 64 members"):
        learner.add_member({"algorithm": "sgd"})
    assert content(learner) == before and len(learner.members()) == 64
    assert sum(view.weight for view in learner.members()) == pytest.approx(1.0, abs=1e-12)
    restored = portfolio(members=members)
    restored.restore(load(before)[0])
    assert content(restored) == before


def huge(spec=None, n=N):
    """Rows of which some have length 1e100, some weight 1e100, some both."""
    batch = spec_stream(spec or {}, n, weighted=False)
    weights = np.ones(n)
    weights[::3] = 1e100
    return relabelled(rescaled(batch, range(3, n, 7), 1e100), batch.labels, weights)


TAME = [
    {"name": "dual", "kind": "dual_ascent", "strength": 30},
    {"name": "ada", "kind": "adagrad"},
    {"name": "newton", "kind": "diagonal_newton", "norm": "row"},
]
RAW = {"name": "wild", "scaling": "none"}
WILD = [
    RAW | {"kind": "dual_ascent", "strength": 1e-12},
    RAW | {"kind": "spg_fixed_total", "strength": 1e-12},
    {"name": "wild", "algorithm": "alma", "p": 4, "normalize": False, "intercept": False},
    {"name": "wild", "algorithm": "asset", "lambda": 0.01, "step": "strongly_convex"},
    {"name": "wild", "algorithm": "dc", "surrogate": "sigmoid", "inner": "complete"},
]


@pytest.mark.parametrize("wild", WILD, ids=lambda one: one.get("kind") or one["algorithm"])
def test_member_with_non_finite_numbers_is_reset_without_effect_on_others(wild):
    batch = huge()
    calm, learner = portfolio(members=TAME), portfolio(members=[*TAME, wild])
    calm.learn(batch)
    scores = learner.learn(batch).scores
    views = learner.members()
    assert views[-1].resets > 0 and not any(view.resets for view in views[:-1])
    assert np.isfinite(scores).all()
    state, expected = learner.state(), calm.state()
    assert all(np.isfinite(array).all() for array in state.values())
    for name in ("weights", "second"):
        mine, whole = expected[f"crew.fused.{name}"], state[f"crew.fused.{name}"]
        assert whole[:, : mine.shape[1]].tobytes() == mine.tobytes()
    assert state["crew.fused.statistics"].tobytes() == expected["crew.fused.statistics"].tobytes()
    for view, one in zip(views[:-1], calm.members(), strict=True):
        assert view.calibration == one.calibration
        assert (view.rows, view.loss, view.resets) == (one.rows, one.loss, one.resets)


@pytest.mark.parametrize("wild", WILD, ids=lambda one: one.get("kind") or one["algorithm"])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_row_that_throws_a_member_out_is_scored_as_it_was_predicted(wild, weight):
    batch, learner = huge(), portfolio(members=[{"kind": "prior"}, wild])
    weights = batch.weights.copy()
    weights[5::4] *= weight
    batch = relabelled(batch, batch.labels, weights)
    whole = portfolio(members=[{"kind": "prior"}, wild])
    scores = whole.learn(batch).scores
    for i in range(N):
        row, resets = batch[i : i + 1], learner.members()[1].resets
        expected = learner.predict(row)[0]
        assert learner.learn(row).scores[0] == expected == scores[i]
        view = learner.members()[1]
        if view.resets > resets:
            assert view.resets == resets + 1 and weights[i] > 0.0
            assert view.calibration == (1.0, 0.0)
            assert not learner.member_weights("wild")[0].any()
    assert view.resets > 0 or weight == 0.0
    assert content(whole) == content(learner)


def test_challenger_reset_on_retained_rows_is_calibrated_since():
    batch, wild = huge(), WILD[-1]
    learner = portfolio(members=TAME, retain=N)
    learner.learn(batch)
    name = learner.add_member(wild)
    alone = portfolio(members=[wild], retain=N)
    alone.learn(batch)
    view = learner.members()[-1]
    assert view.resets == alone.members()[0].resets > 0 and name == "wild"
    assert view.calibration == alone.members()[0].calibration


def test_diverging_challenger_is_reset_like_a_member():
    wild = {"name": "wild", "kind": "dual_ascent", "strength": 1e-12, "scaling": "none"}
    batch = stream(N)
    rows = Batch.from_dense(
        1e100 * np.ones((5, DIM)), [1.0, -1.0, 1.0, -1.0, 1.0], np.full(5, 1e100)
    )
    member, challenged = (
        portfolio(members=[{"kind": "prior"}, wild]),
        portfolio(members=[{"kind": "prior"}]),
    )
    challenged.add_member(wild)
    for learner in (member, challenged):
        learner.learn(batch)
        for i in range(5):
            learner.learn(rows[i : i + 1])
        learner.learn(batch)
    views = member.members()[1], challenged.members()[1]
    assert views[0].resets == views[1].resets > 0
    assert views[0].calibration == pytest.approx(views[1].calibration, rel=1e-12)


@pytest.mark.parametrize("place", range(1, 9))
def test_fused_member_without_a_score_has_everything_at_its_start(place):
    batch = stream(N)
    learner, other = portfolio(), portfolio()
    learner.learn(batch)
    other.learn(batch)
    row = Batch.from_dense(np.ones((1, DIM)), [1.0])
    share = learner.members()[place].weight
    learner._members._fused._table[0, place - 1] = np.nan
    p = 1.0 / (1.0 + np.exp(-learner.predict(row)[0]))
    outcome, expected = learner.learn(row), other.learn(row)
    assert outcome.scores[0] != expected.scores[0]
    assert p == pytest.approx(1.0 / (1.0 + np.exp(-outcome.scores[0])), abs=1e-15)
    view = learner.members()[place]
    assert (view.resets, view.calibration) == (1, (1.0, 0.0))
    assert learner.state()["rule.members"][5:7, place].tolist() == [10.0, 10.0]
    # Its row counts as a guess of 1/2, and its share continues from there.
    assert learner.state()["rule.recent"][-1, place] == pytest.approx(np.log(2.0))
    assert 0.5 * share < view.weight < 1.6 * share
    weights, intercept = learner.member_weights(view.name)
    assert not weights.any() and intercept == 0.0
    certificate = learner.member_certificate(view.name)
    if certificate is not None:
        # No dual variable is left, so that the primal value is that of weights 0.
        assert certificate.dual == 0.0 and certificate.primal == pytest.approx(np.log(2.0))
    mine, its = learner.state(), other.state()
    table, its_table = mine["crew.fused.weights"], its["crew.fused.weights"]
    others = [j for j in range(8) if j != place - 1]
    assert table[:, others].tobytes() == its_table[:, others].tobytes()
    fresh = portfolio().state()["crew.fused.second"][0]
    changed = np.flatnonzero((mine["crew.fused.second"] != its["crew.fused.second"]).any(axis=0))
    for column in changed:
        assert np.all(mine["crew.fused.second"][:, column] == fresh[column])
    assert len(changed) == (1 if place >= 6 else 0)
    assert all(np.isfinite(array).all() for array in mine.values())


GUESTS = {
    name: spec
    for name, spec in SPECS.items()
    if spec["algorithm"] != "portfolio" and spec.get("task") != "regression"
}


def test_guest_beside_others_survives_rows_of_any_size(subtests):
    for name in GUESTS:
        with subtests.test(name=name):
            spec = GUESTS[name]
            guest = {key: value for key, value in spec.items() if key != "features"}
            members = [{"kind": "prior"}, guest, TAME[0]]
            learner = portfolio(members=members, retain=20)
            batch = huge(spec)
            assert np.isfinite(learner.learn(batch).scores).all()
            assert all(np.isfinite(array).all() for array in learner.state().values())
            # Rows of weight 0 change nothing, even if they cannot be scored.
            before = content(learner, counts=False)
            nothing = relabelled(batch, batch.labels, np.zeros(len(batch)))
            scores = learner.learn(nothing).scores
            assert np.isfinite(scores).all() and content(learner, counts=False) == before
            restored = portfolio(members=members, retain=20)
            restored.restore(load(content(learner))[0])
            assert content(restored) == content(learner)
            tail = stream(30, seed=5)
            assert restored.learn(tail).scores.tobytes() == learner.learn(tail).scores.tobytes()


def about(learner):
    return json.loads(learner.state()["about"].tobytes())


@pytest.mark.parametrize(
    "damage",
    [
        lambda got: got.update(members=[]),
        lambda got: got.update(members={}),
        lambda got: got.update(members=got["members"] * 9),
        lambda got: got.update(members=got["members"][:-1]),
        lambda got: got.update(promoted=None),
        lambda got: got.update(promoted="missing"),
        lambda got: got.update(promoted="dual-30"),
        lambda got: got["members"][1]["spec"].update(name="prior"),
        lambda got: got["members"][1]["spec"].update(strength=-5.0),
        lambda got: got["members"][1]["spec"].pop("loss"),
        lambda got: got["members"][1].update(spec="dual-30"),
        lambda got: got["members"][1].update(part="prior"),
        lambda got: got["members"][1].pop("part"),
    ],
)
def test_a_state_of_members_that_cannot_be_changes_nothing(damage):
    learner = portfolio()
    learner.learn(stream(30))
    learner.promote("dual-3")
    before, got = content(learner), about(learner)
    damage(got)
    text = np.frombuffer(json.dumps(got).encode(), np.uint8)
    with pytest.raises(CorruptState):
        learner.restore(learner.state() | {"about": text})
    assert content(learner) == before and learner.promoted == "dual-3"


def test_a_state_of_the_other_task_changes_nothing():
    classes = portfolio()
    spec = {"algorithm": "portfolio", "task": "regression", "features": FEATURES}
    numbers = make_learner(spec)
    for learner, other in ((classes, numbers), (numbers, classes)):
        before = content(learner)
        with pytest.raises(CorruptState):
            learner.restore(other.state())
        assert content(learner) == before

"""Members that are added, removed and promoted, between rows in batches of any size."""

import copy
import tracemalloc

import numpy as np
import pytest

from dualstream.solvers import Batch, MemberError, UnknownMember, dump, load, make_learner
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.portfolio import PRESETS
from dualstream.solvers.portfolio.spec import model_spec
from dualstream.solvers.spec.algorithms import ALGORITHMS
from tests.solvers.portfolio.support import portfolio, probabilities, stream
from tests.solvers.portfolio_reference import LINEAR, PortfolioReference
from tests.solvers.staging import rows_of

N = 60 if DISABLED else 300
PROGRAMS = 3 if DISABLED else 9
STEPS = 15 if DISABLED else 40
FUSED = "crew.fused."
KINDS = [
    {"kind": "dual_ascent", "strength": 3, "norm": "running"},
    {"kind": "dual_ascent", "schedule": "inverse_sqrt", "strength": 0.3, "scaling": "none"},
    {"kind": "spg_fixed_total", "loss": "smooth_hinge", "strength": 1},
    {"kind": "adagrad", "norm": "row", "scaling": {"kind": "balanced", "moments": False}},
    {"kind": "diagonal_newton", "gamma": 0.99},
]
MODEL_MEMBERS = [
    {"algorithm": name} for name in ALGORITHMS if name not in ("portfolio", "semiparametric")
]
MODEL_MEMBERS += [
    {"strength": 3, "scaling": "balanced", "retain": 20},
    {"algorithm": "romma", "norm": "running"},
    {"map": {"kind": "fourier", "components": 10}, "loss": "hinge"},
]
NUMBERS = {"map": {"kind": "fourier", "components": 10}, "loss": "absolute", "norm": "row"}


def ids(spec):
    return "-".join(str(value) for value in spec.values() if not isinstance(value, dict))


def content(learner):
    return dump(learner.state(), {})


def counted(batch, last=None):
    """The rows of positive weight, or the last of them."""
    rows = batch.take(batch.weights > 0.0)
    return rows if last is None else rows[max(0, len(rows) - last) :]


@pytest.mark.parametrize("retain", [7, 1000])
@pytest.mark.parametrize("spec", [*KINDS, *MODEL_MEMBERS], ids=ids)
def test_challenger_begins_as_one_that_learned_the_retained_rows_alone(spec, retain):
    batch = stream(N)
    learner = portfolio(retain=retain, share=0.01)
    learner.learn(batch)
    before = learner.members()
    raw = {name: array for name, array in learner.state().items() if name.startswith(FUSED)}
    name = learner.add_member(spec)
    rows = counted(batch, retain)
    mine = learner.member_weights(name)
    if "kind" in spec:
        alone = portfolio(members=[spec], retain=retain)
        alone.learn(rows)
        expected = alone.member_weights(alone.members()[0].name)
        assert learner.members()[-1].calibration == alone.members()[0].calibration
    else:
        alone = make_learner(model_spec(learner.resolve_member(spec), learner.spec))
        alone.learn(rows)
        expected = alone.weights, alone.intercept
        one = portfolio(members=[spec], retain=retain)
        one.learn(rows)
        assert learner.members()[-1].calibration == one.members()[0].calibration
    assert (mine[0].tobytes(), mine[1]) == (expected[0].tobytes(), expected[1])
    after = learner.members()
    assert after[-1].weight == 0.01 and after[-1].rows == 0 and after[-1].loss is None
    for old, new in zip(before, after, strict=False):
        assert new.weight == old.weight * (1.0 - 0.01)
        assert (new.calibration, new.rows, new.loss) == (old.calibration, old.rows, old.loss)
    for key, array in raw.items():
        assert learner.state()[key].tobytes() == array.tobytes(), key
    # From here on it learns what the others learn.
    more = stream(40, seed=4)
    learner.learn(more)
    alone.learn(more)
    mine = learner.member_weights(name)
    if "kind" in spec:
        expected = alone.member_weights(alone.members()[0].name)
    else:
        expected = alone.weights, alone.intercept
    assert (mine[0].tobytes(), mine[1]) == (expected[0].tobytes(), expected[1])
    assert learner.members()[-1].rows == len(counted(more))


@pytest.mark.skipif(DISABLED, reason="memory is that of the compiled learner")
def test_rows_cut_from_large_batches_do_not_keep_them_in_memory():
    rng = np.random.default_rng(0)
    learner = portfolio(100, members=[KINDS[0]], retain=50)

    def large():
        return Batch.from_dense(rng.normal(size=(500, 100)), np.ones(500))

    learner.learn(large()[:1])
    tracemalloc.start()
    try:
        for _ in range(40):
            learner.learn(large()[7:8])
        # Each of the 40 is of 600,000 bytes.
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


def removed(reference, place):
    """A reference that continues without one member."""
    fewer = copy.deepcopy(reference)
    for column in (fewer.members, fewer.v, fewer.a, fewer.b, fewer.big_a, fewer.big_b):
        del column[place]
    total = sum(fewer.v)
    fewer.v = [v / total for v in fewer.v]
    return fewer


@pytest.mark.parametrize("name", LINEAR)
def test_any_member_of_a_preset_can_be_removed_and_the_others_go_on(name):
    first, second = stream(50), stream(12 if DISABLED else 20, seed=1)
    whole, reference = portfolio(members=name, retain=30), PortfolioReference(PRESETS[name])
    whole.learn(first)
    for row, y, c in zip(
        rows_of(first), first.labels.tolist(), first.weights.tolist(), strict=True
    ):
        reference.learn(row, y, c)
    state = whole.state()
    both = Batch.concat([first, second])
    for index, member in enumerate(PRESETS[name]):
        learner = portfolio(members=name, retain=30)
        learner.restore(state)
        others = [one["name"] for one in PRESETS[name] if one != member]
        certificates = [learner.member_certificate(one) for one in others]
        before = {one: learner.member_weights(one) for one in others}
        learner.remove_member(member["name"])
        assert [view.name for view in learner.members()] == others
        assert [learner.member_certificate(one) for one in others] == certificates
        kept = [learner.members()[k].weight for k in range(len(others))]
        old = np.delete(state["rule.members"][0], index)
        np.testing.assert_allclose(kept, old / old.sum(), rtol=1e-12)
        rest = np.delete(state["rule.members"], index, axis=1)
        assert learner.state()["rule.members"][1:].tobytes() == rest[1:].tobytes()
        for one in others:
            weights, intercept = learner.member_weights(one)
            assert weights.tobytes() == before[one][0].tobytes() and intercept == before[one][1]
        # As the reference in that state ...
        fewer = removed(reference, index)
        result = probabilities(learner.learn(second).scores)
        expected = [
            fewer.learn(row, y, c)[0]
            for row, y, c in zip(
                rows_of(second), second.labels.tolist(), second.weights.tolist(), strict=True
            )
        ]
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-9)
        # ... and each of the others, bit for bit, as if the member had never existed.
        never = portfolio(members=[one for one in PRESETS[name] if one != member], retain=30)
        never.learn(both)
        for one in others:
            mine, its = learner.member_weights(one), never.member_weights(one)
            assert (mine[0].tobytes(), mine[1]) == (its[0].tobytes(), its[1])
            assert learner.member_certificate(one) == never.member_certificate(one)


@pytest.mark.parametrize("members", ["eight", [MODEL_MEMBERS[0], KINDS[0], {"kind": "prior"}]])
def test_members_can_be_removed_down_to_the_last(members):
    learner, batch = portfolio(members=members), stream(30)
    while len(learner.members()) > 1:
        learner.learn(batch)
        learner.remove_member(learner.members()[0].name)
        assert sum(view.weight for view in learner.members()) == pytest.approx(1.0, abs=1e-12)
    before = content(learner)
    last = learner.members()[0].name
    with pytest.raises(MemberError, match=f"'{last}' is the last member"):
        learner.remove_member(last)
    with pytest.raises(UnknownMember, match="there is no member 'missing'"):
        learner.remove_member("missing")
    assert content(learner) == before
    assert np.isfinite(learner.learn(batch).scores).all()
    # The list can be extended again.
    learner.add_member({"name": "new", "kind": "adagrad"})
    learner.remove_member(last)
    learner.learn(batch)
    assert [view.weight for view in learner.members()] == pytest.approx([1.0], abs=1e-12)


@pytest.mark.parametrize("served", ["dual-3", "newton-row", "prior", "sgd-1"])
def test_other_members_do_not_change_while_one_is_served(served):
    first, second, third = stream(N), stream(40, seed=1), stream(40, seed=2)
    learner, free = portfolio(retain=50), portfolio(retain=50)
    for one in (learner, free):
        one.learn(first)
        one.add_member({"algorithm": "sgd"})
        one.learn(first)
    names = [view.name for view in learner.members()]
    position = names.index(served)
    shares = [view.weight for view in learner.members()]
    before = learner.state()
    learner.promote(served)
    assert learner.promoted == served
    scores = learner.learn(second).scores
    free.learn(second)
    views, state = learner.members(), learner.state()
    assert [view.active for view in views] == [name == served for name in names]
    assert [view.weight for view in views] == pytest.approx(
        [float(name == served) for name in names]
    )
    # It learns and is calibrated as before; the score is its own alone.
    mine, its = learner.member_weights(served), free.member_weights(served)
    assert (mine[0].tobytes(), mine[1]) == (its[0].tobytes(), its[1])
    assert views[position].calibration == free.members()[position].calibration
    if served not in ("prior", "sgd-1"):
        alone = portfolio(members=[one for one in PRESETS["eight"] if one["name"] == served])
        for rows in (first, first):
            alone.learn(rows)
        np.testing.assert_allclose(scores, alone.learn(second).scores, rtol=1e-9, atol=1e-12)
    others = [k for k, name in enumerate(names) if name != served]
    # V is saved in V_BEFORE, the rest does not change.
    kept, old = state["rule.members"][:, others], before["rule.members"][:, others]
    assert kept[1].tobytes() == old[0].tobytes()
    assert kept[3:].tobytes() == old[3:].tobytes()
    slots = len(before["crew.fused.touched"])
    fused = [k - 1 for k in others if 1 <= k <= 8]
    for column in fused:
        old = before["crew.fused.weights"][:, column]
        assert state["crew.fused.weights"][:slots, column].tobytes() == old.tobytes()
        assert not state["crew.fused.weights"][slots:, column].any()
    changed = state["crew.fused.second"][:slots] != before["crew.fused.second"]
    assert np.count_nonzero(changed.any(axis=0)) == (1 if served == "newton-row" else 0)
    if served != "sgd-1":
        added = [name for name in before if name.startswith("crew.9.")]
        assert added and all(state[name].tobytes() == before[name].tobytes() for name in added)
    with pytest.raises(MemberError, match="is promoted; demote it first"):
        learner.remove_member(names[0] if served != names[0] else names[1])
    with pytest.raises(MemberError, match="is promoted; demote it first"):
        learner.add_member({"algorithm": "spg"})
    learner.demote()
    assert [view.weight for view in learner.members()] == shares
    with pytest.raises(MemberError, match="no member is promoted"):
        learner.demote()
    assert all(view.active for view in learner.members())
    learner.learn(third)
    assert np.isfinite(learner.predict(third)).all()


def test_promotion_of_another_member_leaves_the_shares_to_come_back():
    learner = portfolio()
    learner.learn(stream(N))
    shares = [view.weight for view in learner.members()]
    learner.promote("dual-3")
    learner.learn(stream(20, seed=1))
    learner.promote("dual-30")
    assert learner.promoted == "dual-30"
    with pytest.raises(UnknownMember):
        learner.promote("missing")
    assert learner.promoted == "dual-30"
    learner.learn(stream(20, seed=2))
    learner.demote()
    assert [view.weight for view in learner.members()] == shares


def program(seed):
    """Random steps: rows, and changes of members, some of which are refused."""
    rng = np.random.default_rng(seed)
    specs = [*KINDS, *MODEL_MEMBERS, {"kind": "prior"}]
    # Each kind of step occurs at least once.
    steps = [("learn", stream(20)), ("add", specs[seed % len(specs)]), ("remove", seed)]
    steps += [("promote", seed), ("learn", stream(9, seed=seed)), ("demote", 0)]
    for step in range(STEPS):
        what = rng.choice(
            ["learn", "add", "remove", "promote", "demote"], p=[0.5, 0.2, 0.1, 0.1, 0.1]
        )
        if what == "learn":
            steps.append(("learn", stream(int(rng.integers(1, 40)), seed=1000 * seed + step)))
        elif what == "add":
            steps.append(("add", specs[rng.integers(len(specs))]))
        else:
            steps.append((what, int(rng.integers(100))))
    steps.append(("learn", stream(30, seed=seed)))
    return steps


def do(learner, what, given):
    """Apply one change; its result, or the reason for its refusal."""
    names = [view.name for view in learner.members()]
    try:
        if what == "add":
            return learner.add_member(given)
        if what == "demote":
            return learner.demote()
        name = names[given % len(names)]
        return learner.promote(name) if what == "promote" else learner.remove_member(name)
    except MemberError as refusal:
        return str(refusal)


def begun(seed):
    members = [
        "eight",
        "twelve",
        [MODEL_MEMBERS[seed % len(MODEL_MEMBERS)], KINDS[seed % len(KINDS)]],
    ][seed % 3]
    return portfolio(members=members, retain=25, share=0.01)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_changes_between_rows_are_the_same_however_the_rows_are_cut_and_restored(seed):
    whole, single = begun(seed), begun(seed)
    rng = np.random.default_rng(seed)
    for what, case in program(seed):
        if what != "learn":
            got = do(whole, what, case)
            assert do(single, what, case) == got
        else:
            scores = whole.learn(case).scores
            cuts = np.sort(rng.integers(0, len(case) + 1, 3)).tolist()
            if rng.random() < 0.5:
                cuts = list(range(len(case)))
            pieces = zip([0, *cuts], [*cuts, len(case)], strict=True)
            outs = [single.learn(case[a:b]).scores for a, b in pieces]
            assert np.concatenate(outs).tobytes() == scores.tobytes()
        assert content(single) == content(whole)
        assert np.isfinite(whole.predict(stream(3, seed=7))).all()
        if rng.random() < 0.7:
            # With another list of members, and another history.
            other = begun(seed)
            other.learn(stream(5))
            other.restore(load(content(single))[0])
            assert other.members() == single.members() and other.promoted == single.promoted
            single = other


@pytest.mark.parametrize("added", [MODEL_MEMBERS[0], NUMBERS, KINDS[3]], ids=ids)
def test_regression_members_are_added_and_removed(added):
    spec = {"algorithm": "portfolio", "task": "regression", "retain": 25}
    spec |= {"features": {"kind": "indexed", "dim": 12}}
    learner, other = make_learner(spec), make_learner(spec)
    batch = stream(N)
    rows = batch.with_labels(100.0 + 3.0 * np.cumsum(batch.labels))
    for one in (learner, other):
        one.learn(rows[:40])
    if "kind" in added:
        with pytest.raises(Exception, match="only a model can be added"):
            learner.add_member(added)
        assert content(learner) == content(other)
        return
    for one in (learner, other):
        name = one.add_member(added)
    learner.learn(rows[40:])
    for i in range(40, N):
        other.learn(rows[i : i + 1])
        if i % 7 == 0:
            restored = make_learner(spec)
            restored.restore(other.state())
            other = restored
    assert content(learner) == content(other)
    for one in (learner, other):
        one.remove_member("mean")
        one.promote(name)
        one.learn(rows[:20])
        one.demote()
        one.remove_member(name)
        assert np.isfinite(one.learn(rows).scores).all()
    assert content(learner) == content(other)

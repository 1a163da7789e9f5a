"""Labels far outside all earlier ones: members skip them, and the rule follows a new scale."""

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, dump, make_learner, resolve_spec
from dualstream.solvers.portfolio.wild_labels import (
    ACCEPTED,
    BUDGET,
    ORDINARY,
    UNWEIGHTED,
    WILD,
    WildLabels,
)

DIM, AT = 4, 120


def portfolio(members="ten"):
    spec = {"task": "regression", "features": {"kind": "indexed", "dim": DIM}, "members": members}
    return make_learner(resolve_spec(spec))


def rows_with(n=300, first=AT, count=10, factor=1e6):
    """Rows of which `count` have a label that is `factor` times too large, and those without
    them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, DIM))
    y = 10.0 + x @ [1.0, -2.0, 0.5, 0.0] + 0.1 * rng.normal(size=n)
    y[first : first + count] *= factor
    rows = Batch.from_dense(x, y)
    return rows, rows.take(np.r_[0:first, first + count : n])


def marks_of(labels, weights=None):
    labels = np.asarray(labels, np.float64)
    marks = WildLabels().mark(labels, np.ones(len(labels)) if weights is None else weights)
    return None if marks is None else marks.tolist()


@pytest.mark.parametrize("members", ["ten", "fast"])
@pytest.mark.parametrize("factor", [1e3, -1e6, 1e80])
def test_broken_labels_in_sequence_leave_no_trace(members, factor):
    rows, sound = rows_with(factor=factor)
    after = portfolio(members).learn(rows).scores[AT + 10 :]
    without = portfolio(members).learn(sound).scores[AT:]
    # The first row after them is still predicted by what followed them.
    assert after[0] != without[0]
    np.testing.assert_array_equal(after[1:], without[1:])


def test_rows_one_by_one_and_restored_states_continue_to_the_same_bits():
    rows, _ = rows_with(n=160)
    whole, single = portfolio(), portfolio()
    outcome = whole.learn(rows)
    for i in range(len(rows)):
        one = rows[i : i + 1]
        assert single.predict(one)[0] == outcome.scores[i]
        result = single.learn(one)
        assert (result.scores[0], result.losses[0]) == (outcome.scores[i], outcome.losses[i])
        single, other = portfolio(), single
        single.restore(other.state())
    assert dump(single.state(), {}) == dump(whole.state(), {})


def test_a_new_unit_is_followed_and_learned():
    rows, _ = rows_with(n=900, count=780, factor=1e4)
    errors = np.abs(portfolio().learn(rows).scores - rows.labels) / 1e4
    assert errors[AT] > 3.0
    # By the last label from the second row on, by the features after that.
    assert errors[AT + 8 : AT + 20].mean() < 3.0
    assert errors[-200:].mean() < 1.0


def test_a_change_of_the_members_returns_to_the_rule_from_before():
    rows, _ = rows_with()
    one, other = portfolio(), portfolio()
    one.learn(rows[: AT + 3])
    other.learn(rows[:AT])
    for learner in (one, other):
        learner.promote("newton")
    rest = rows[AT + 10 :]
    np.testing.assert_array_equal(one.learn(rest).scores, other.learn(rest).scores)


def test_the_marks():
    usual = [0.0, 1.0] * 25
    assert marks_of(usual) is None
    assert marks_of([*usual, 11.0]) is None
    assert marks_of([*usual, 11.1, 0.5, -10.1])[50:] == [WILD, ORDINARY, WILD]
    weights = np.ones(52)
    weights[50] = 0.0
    assert marks_of([*usual, 1e9, 1e9], weights)[50:] == [UNWEIGHTED, WILD]
    # Too few rows before, or all of one value.
    assert marks_of([*usual[:49], 1e9]) is None
    assert marks_of([*[3.0] * 100, 1e9]) is None


def test_wild_labels_are_accepted_once_the_budget_is_used():
    usual, most = [0.0, 1.0] * 25, int(BUDGET)
    marks = marks_of(usual + [1e3] * (most + 3))[50:]
    assert marks == [WILD] * most + [ACCEPTED] + [ORDINARY] * 2
    # In bursts, too; forgetting them takes thousands of rows.
    bursts = marks_of(usual + [1e3, *usual[:20]] * (most + 5))
    assert bursts.count(WILD) <= most + 3
    assert bursts.count(ACCEPTED) == 1
    much_later = marks_of(usual + [1e3] * most + usual * 400 + [1e3] * (most + 1))
    assert much_later.count(WILD) == 2 * most


def test_a_damaged_range_is_refused():
    rows, _ = rows_with(n=AT)
    learner = portfolio()
    learner.learn(rows)
    for damaged in ([1.0, 0.0, 5.0, 0.0], [0.0, 1.0, -1.0, 0.0], [0.0, 1.0, 5.0, BUDGET + 1.0]):
        state = learner.state()
        state["wild.range"] = np.array(damaged)
        with pytest.raises(CorruptState, match="range of the labels"):
            portfolio().restore(state)

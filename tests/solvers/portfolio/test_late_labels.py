"""Late labels of a portfolio: the second rule, fed with what the members served."""

from dataclasses import replace

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, make_learner
from dualstream.solvers.portfolio.late_kernels import FIRST, HEAD, SAMPLES, SECOND
from dualstream.solvers.protocols.served_form import ClassMixture, NumberMixture
from tests.solvers.portfolio.support import portfolio, regression_stream, stream

TASKS = ("binary", "regression")
DELAY = 7


def rows_of(task, n=120):
    return stream(n) if task == "binary" else regression_stream(n)


def made(task, dim=None):
    return portfolio(task=task, dim=dim or (12 if task == "binary" else 8))


def late_rows(learner, batch, delay=DELAY):
    """The rows in the order in which their labels come, with what they kept, as the learner serves
    them; it learns each one at once."""
    parts, served, learned = [], [], []
    for row in range(len(batch)):
        one = batch[row : row + 1]
        score, kept = learner.predict_waiting(one)
        assert np.array_equal(score, learner.predict(one))
        served.append(score)
        parts.append(kept)
        if row >= delay:
            at = row - delay
            late = replace(batch[at : at + 1], served=served[at], served_parts=parts[at])
            learner.learn(late)
            learned.append(late)
    return learned


def same_state(one, two):
    mine, other = one.state(), two.state()
    assert mine.keys() == other.keys()
    return all(np.array_equal(mine[name], other[name], equal_nan=True) for name in mine)


@pytest.mark.parametrize("task", TASKS)
def test_batches_of_late_rows_equal_their_rows(task):
    learner = made(task)
    learned = late_rows(learner, rows_of(task))
    # Rows with and without what they kept, in one batch and in several.
    prompt = rows_of(task)[:20]
    whole = Batch.concat([prompt, *learned])
    one, two = made(task), made(task)
    scores = one.learn(whole).scores
    several = [two.learn(whole[a:b]).scores for a, b in ((0, 13), (13, 14), (14, 60), (60, 133))]
    assert same_state(one, two)
    assert np.array_equal(scores, np.concatenate(several))
    assert "late.evidence" in one.state()


@pytest.mark.parametrize("task", TASKS)
def test_a_state_with_late_labels_is_restored(task):
    learner, batch = made(task), rows_of(task)
    learned = late_rows(learner, batch)
    other = made(task)
    other.learn(batch[:5])
    other.restore(learner.state())
    for one in (learner, other):
        one.learn(learned[-1])
        one.learn(batch[:3])
    assert same_state(learner, other)
    assert np.array_equal(learner.predict(batch), other.predict(batch))
    good, members = learner.state(), learner.state()["late.members"]
    wrong = [{"late.members": members + 1.0}, {"late.members": members - 1e99}]
    wrong += [{"late.shared": -good["late.shared"]}, {"late.evidence": np.array([-1.0, 0.0])}]
    damaged = {name: array for name, array in good.items() if name != "late.evidence"}
    for broken in (damaged, *(good | one for one in wrong)):
        with pytest.raises(CorruptState):
            other.restore(broken)
        assert same_state(learner, other)
    plain = made(task)
    learner.restore(plain.state())
    assert same_state(learner, plain)


@pytest.mark.parametrize("task", TASKS)
def test_rows_of_weight_0_do_not_make_others_later(task):
    learned = late_rows(made(task), rows_of(task))
    extra = rows_of(task)[:9]
    extra = replace(extra, weights=np.zeros(len(extra)))
    late_extra = replace(learned[-1], weights=np.zeros(1))
    # The first of them comes before the second rule exists.
    runs = [rows_of(task)[:40], late_extra, *learned[:40], extra, late_extra, *learned[40:]]
    one, two = made(task), made(task)
    whole = Batch.concat(runs)
    one.learn(whole)
    two.learn(whole.take(whole.weights > 0.0))
    request = rows_of(task)
    assert np.array_equal(one.predict(request), two.predict(request))
    mine, others = (learner.predict_waiting(request)[1] for learner in (one, two))
    assert np.array_equal(mine, others)


@pytest.mark.parametrize("task", TASKS)
def test_members_learn_late_rows_as_they_learn_others(task):
    batch = rows_of(task)
    learner, plain = made(task), made(task)
    for row in late_rows(learner, batch):
        plain.learn(replace(row, served=None, served_parts=None))
    first = {name: array for name, array in learner.state().items() if "late." not in name}
    assert first.keys() == plain.state().keys()
    assert all(np.array_equal(first[name], plain.state()[name]) for name in first)


@pytest.mark.parametrize("task", TASKS)
def test_the_served_score_is_the_mixture_of_what_a_row_keeps(task):
    learner, batch = made(task), rows_of(task)
    late_rows(learner, batch)
    kept = learner.predict_waiting(batch)[1]
    assert kept.shape == (len(batch), HEAD + len(learner.members()))
    assert (kept[:, SAMPLES] == kept[0, SAMPLES]).all()
    share = learner._late.share
    first, second = kept[:, FIRST], kept[:, SECOND]
    if task == "binary":
        first, second = (1.0 / (1.0 + np.exp(-one)) for one in (first, second))
    expected = (1.0 - share) * first + share * second
    if task == "binary":
        expected = np.log(expected / (1.0 - expected))
    np.testing.assert_allclose(learner.predict(batch), expected, rtol=1e-9, atol=1e-9)


def test_a_follower_of_the_last_labels_loses_its_share():
    """Labels in runs of 50: who follows them is best at once, and worthless 50 rows late."""
    rng = np.random.default_rng(0)
    n, delay = 3000, 50
    run = rng.choice([-1.0, 1.0], n // 50).repeat(50)
    noise = rng.normal(size=n)
    y = np.where(rng.random(n) < 0.3, np.where(noise > 0.0, 1.0, -1.0), run)
    batch = Batch.from_dense(np.column_stack([noise, np.ones(n)]), y)
    learner, plain = made("binary", dim=2), made("binary", dim=2)
    scores, of_plain, parts = np.empty(n), np.empty(n), []
    for row in range(n):
        one = batch[row : row + 1]
        scores[row], of_plain[row] = learner.predict(one)[0], plain.predict(one)[0]
        parts.append(learner.predict_waiting(one)[1])
        if row >= delay:
            at = row - delay
            plain.learn(batch[at : at + 1])
            learner.learn(
                replace(batch[at : at + 1], served=scores[at : at + 1], served_parts=parts[at])
            )
    log_loss, of_plain = (np.logaddexp(0.0, -y * one).mean() for one in (scores, of_plain))
    assert log_loss < of_plain - 0.05
    assert learner._late.share > 0.5
    followers = ("dual-0.03-running", "dual-3")
    mine, others = (
        [view for view in one.members() if view.name in followers] for one in (learner, plain)
    )
    assert sum(view.weight for view in mine) < 0.5 * sum(view.weight for view in others)
    assert sum(view.weight for view in learner.members()) == pytest.approx(1.0)
    # Losses and comparisons are of what was served.
    assert all(one.loss > other.loss + 0.1 for one, other in zip(mine, others, strict=True))
    mine, others = (one.compare("dual-3", "prior").mean for one in (learner, plain))
    assert mine > others + 0.1


@pytest.mark.parametrize("task", TASKS)
def test_rows_that_untrained_members_served_count_with_the_scores_at_learning_time(task):
    """And they move no shares."""
    batch = rows_of(task)
    learner, other = made(task), made(task)
    kept = learner.predict_waiting(batch)[1]
    moved = kept.copy()
    moved[:, HEAD:] += 1.0
    for one, parts in ((learner, kept), (other, moved)):
        one.learn(replace(batch, served=np.zeros(len(batch)), served_parts=parts))
    assert same_state(learner, other)
    shares = learner._late.rule.shares
    np.testing.assert_allclose(shares, 1.0 / len(shares), rtol=1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_rows_that_other_members_served_count_as_prompt(task):
    learner, batch = made(task), rows_of(task)
    before = late_rows(learner, batch)[-1]
    name = learner.members()[1].name
    learner.remove_member(name)
    kept = learner.predict_waiting(batch[:1])[1]
    after = replace(batch[:1], served=np.zeros(1), served_parts=kept)
    one, two = made(task), made(task)
    for other in (one, two):
        other.restore(learner.state())
    # Rows of different widths in one batch, and each by itself.
    one.learn(Batch.concat([before, after]))
    two.learn(replace(before, served=None, served_parts=None))
    two.learn(after)
    assert same_state(one, two)


@pytest.mark.parametrize("task", TASKS)
def test_members_can_change_after_late_labels(task):
    learner, batch = made(task), rows_of(task)
    late_rows(learner, batch)
    learner.add_member({"name": "new", "algorithm": "sgd"})
    learner.learn(batch[:10])
    learner.promote("new")
    learner.learn(batch[:10])
    other = made(task)
    other.restore(learner.state())
    learner.demote()
    other.demote()
    late_rows(learner, batch[:30])
    late_rows(other, batch[:30])
    assert same_state(learner, other)


@pytest.mark.parametrize("task", TASKS)
def test_explanations_and_forms_are_of_both_rules(task):
    learner, batch = made(task), rows_of(task)
    late_rows(learner, batch)
    learner._late._evidence[:] = 100.0, 60.0
    row = batch[50:51]
    explained = learner.explain(row)
    assert explained.score == pytest.approx(learner.predict(row)[0], rel=1e-12)
    total = explained.base + explained.contributions.sum()
    assert total == pytest.approx(explained.score, rel=1e-6, abs=1e-6)
    (mixture,) = learner.form().scores
    assert isinstance(mixture, ClassMixture if task == "binary" else NumberMixture)
    assert [part.share for part in mixture.parts] == [
        1.0 - learner._late.share,
        learner._late.share,
    ]


@pytest.mark.parametrize("task", TASKS)
def test_first_rows_that_are_learned_again_count_as_prompt(task):
    batch, learner = rows_of(task), made(task)
    x = np.zeros((40, batch.dim))
    for row in range(40):
        x[row, batch[row : row + 1].indices] = batch[row : row + 1].values
    x[25, 0] = 1e60
    broken = Batch.from_dense(x, batch.labels[:40])
    score, parts = learner.predict_waiting(broken)
    late = replace(broken, served=score, served_parts=parts)
    other = made(task)
    outcome = learner.learn(late)
    for row in range(40):
        saved, other = other.state(), made(task)
        other.restore(saved)
        other.learn(late[row : row + 1])
    assert outcome.relearned and same_state(learner, other)


def test_prompt_labels_begin_no_second_rule():
    learner, batch = made("binary"), rows_of("binary")
    kept = np.full((len(batch), HEAD + len(learner.members())), np.nan)
    learner.learn(replace(batch, served=np.full(len(batch), np.nan), served_parts=kept))
    assert not any(name.startswith("late.") for name in learner.state())
    served = replace(
        batch[:1], served=np.zeros(1), served_parts=learner.predict_waiting(batch[:1])[1]
    )
    learner.learn(served)
    assert learner._late.share == pytest.approx(0.09)
    numbers = made("regression")
    late_rows(numbers, rows_of("regression")[: DELAY + 4])
    assert numbers._late.share == 0.0


def test_several_classes_keep_the_scores_of_classes_alone():
    spec = {"task": "multiclass", "members": "eight", "features": {"kind": "indexed", "dim": 12}}
    assert not hasattr(make_learner(spec), "predict_waiting")

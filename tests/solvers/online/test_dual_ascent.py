"""O-DCA against a slow reference, and its guarantees for any input."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dualstream.solvers import Batch, CorruptState, InvalidRow, ShapeMismatch, dump, make_learner
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.losses.loss_table import LOSSES, MARGIN_LOSSES
from dualstream.solvers.online.dual_ascent import kernels as _l2, learner as dual_ascent
from dualstream.solvers.refit.refit import enter_refit, problems_of
from dualstream.solvers.refit.window_problem import Refitting
from tests.fuzzing import examples
from tests.solvers import reference
from tests.solvers.online.dual_ascent_support import WINDOWS, bytes_of, rows_of, spec_of

FEW = examples(25 if DISABLED else 100)


def test_learner_is_the_reference(subtests):
    for kappa, window, loss in product([None, 0.8], WINDOWS.values(), LOSSES):
        with subtests.test(kappa=kappa, window=window, loss=loss):
            batch, x = rows_of(40, regression=loss not in MARGIN_LOSSES)
            learner = make_learner(spec_of(loss, window, kappa, rho=0.05))
            slow = reference.Reference(loss, window, 0.05, kappa or 0.0)
            outcome = learner.learn(batch)
            for h, y, c in zip(x, batch.labels, batch.weights, strict=True):
                slow.learn(np.append(h, 1.0), y, c)
            assert not outcome.rejected.any()
            np.testing.assert_allclose(outcome.scores, slow.scores, rtol=1e-9, atol=1e-10)
            losses = [
                reference.value(loss, z, y, slow.k)
                for z, y in zip(slow.scores, batch.labels, strict=True)
            ]
            np.testing.assert_allclose(outcome.losses, losses, rtol=1e-9, atol=1e-9)
            served = np.append(learner.weights, learner.intercept)
            np.testing.assert_allclose(served, slow.served(), rtol=1e-9, atol=1e-10)
            np.testing.assert_allclose(
                learner.state()["ring_duals"], [row[3] for row in slow.rows], rtol=1e-9, atol=1e-10
            )
            primal, dual, gap = slow.certificate()
            certificate = learner.certificate()
            assert certificate.dual == pytest.approx(dual, rel=1e-9, abs=1e-10)
            assert certificate.gap == pytest.approx(gap, rel=1e-9, abs=1e-10)
            assert certificate.primal == pytest.approx(primal, rel=1e-9, abs=1e-10)
            assert certificate.estimate is (window[0] != "sliding")
            assert learner.samples == 40


@pytest.mark.parametrize("kappa", [None, 0.8], ids=["last", "average"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("loss", ["logistic", "absolute"])
def test_strength_holds_rho_delta_fixed(loss, window, kappa):
    batch, x = rows_of(40, regression=loss == "absolute")
    learner = make_learner(spec_of(loss, window, kappa, strength=3))
    slow = reference.Reference(loss, window, 0.0, kappa or 0.0, strength=3.0)
    outcome = learner.learn(batch)
    for h, y, c in zip(x, batch.labels, batch.weights, strict=True):
        slow.learn(np.append(h, 1.0), y, c)
    np.testing.assert_allclose(outcome.scores, slow.scores, rtol=1e-9, atol=1e-10)
    served = np.append(learner.weights, learner.intercept)
    np.testing.assert_allclose(served, slow.served(), rtol=1e-9, atol=1e-10)
    certificate = learner.certificate()
    result = certificate.primal, certificate.dual, certificate.gap
    assert result == pytest.approx(slow.certificate(), rel=1e-9, abs=1e-10)
    if kappa is None:
        state = learner.state()
        np.testing.assert_allclose(served, state["scale"] * state["v"] / 3, rtol=1e-14)


@pytest.mark.parametrize("kappa", [None, 0.9995], ids=["last", "average"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@FEW
@given(cuts=st.lists(st.integers(0, 60), max_size=8), seed=st.integers(0, 9))
def test_batch_is_a_loop_of_single_rows_to_the_bit(window, kappa, cuts, seed):
    batch, _ = rows_of(60, seed=seed)
    spec = spec_of("logistic", window, kappa, retain=9)
    whole, parts = make_learner(spec), make_learner(spec)
    outcome = whole.learn(batch)
    edges = [0, *sorted(cuts), 60]
    pieces = [parts.learn(batch[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    for name in ("scores", "losses", "updated", "rejected"):
        together = np.concatenate([getattr(piece, name) for piece in pieces])
        np.testing.assert_array_equal(getattr(outcome, name), together)
    assert bytes_of(whole) == bytes_of(parts)
    assert whole.certificate() == parts.certificate()


@pytest.mark.parametrize("kappa", [None, 0.99], ids=["last", "average"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@FEW
@given(cut=st.integers(0, 60))
def test_restored_learner_continues_without_a_difference(window, kappa, cut):
    batch, _ = rows_of(60)
    spec = spec_of("hinge", window, kappa, retain=9)
    whole, before, after = (make_learner(spec) for _ in range(3))
    whole.learn(batch)
    before.learn(batch[:cut])
    after.learn(batch[30:])  # the previous content must not matter
    after.restore(before.state())
    assert bytes_of(after) == bytes_of(before)
    np.testing.assert_array_equal(after.predict(batch), before.predict(batch))
    after.learn(batch[cut:])
    assert bytes_of(after) == bytes_of(whole)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_reads_leave_every_bit_alone(window):
    batch, _ = rows_of(50)
    learner = make_learner(spec_of("logistic", window, 0.9))
    learner.learn(batch)
    before = bytes_of(learner)
    columns = [c.tobytes() for c in (batch.indptr, batch.indices, batch.values, batch.labels)]
    learner.predict(batch)
    learner.certificate()
    learner.probabilities(learner.predict(batch))
    learner.weights[:] = 7.0
    for array in learner.state().values():
        array[...] = 1
    assert (learner.nonzeros, learner.samples) == (6, 50)
    assert bytes_of(learner) == before
    assert columns == [
        c.tobytes() for c in (batch.indptr, batch.indices, batch.values, batch.labels)
    ]


@pytest.mark.parametrize("kappa", [None, 0.9], ids=["last", "average"])
def test_predict_gives_the_score_that_learning_will_report(kappa):
    batch, _ = rows_of(30)
    learner = make_learner(spec_of("hinge", ("exponential", 0.9), kappa))
    for i in range(30):
        row = batch[i : i + 1]
        predicted = learner.predict(row)
        assert predicted[0] == learner.learn(row).scores[0]


def test_a_zero_row_advances_delta_and_adds_nothing(subtests):
    for window, loss in product(WINDOWS.values(), LOSSES):
        with subtests.test(window=window, loss=loss):
            regression = loss not in MARGIN_LOSSES
            batch, _ = rows_of(5, regression=regression, weighted=False)
            zero = Batch.from_dense(np.zeros((1, 6)), np.array([1.0]))
            learner = make_learner(spec_of(loss, window, intercept=False))
            learner.learn(batch)
            before = learner.state()
            outcome = learner.learn(zero)
            after = learner.state()
            decay = window[1] if window[0] == "exponential" else 1.0
            assert after["delta"] == decay * before["delta"] + 1.0
            np.testing.assert_array_equal(after["v"], before["v"])
            assert not outcome.updated[0] and not outcome.rejected[0]
            assert learner.samples == 6
            # Its own dual variable is the best one, so that it adds nothing to the gap.
            y, dual = 1.0, after["ring_duals"][-1]
            bracket = reference.value(loss, 0.0, y, reference.LOSSES[loss]) + reference.conjugate(
                loss, dual, y, reference.LOSSES[loss]
            )
            assert bracket == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_row_of_weight_zero_is_counted_and_touches_nothing_else(window):
    batch, _ = rows_of(20, weighted=False)
    idle = Batch.from_dense(np.ones((3, 6)), np.ones(3), np.zeros(3))
    learner = make_learner(spec_of("hinge", window, 0.9, retain=7))
    learner.learn(batch)
    before = learner.state()
    outcome = learner.learn(idle)
    after = learner.state()
    assert after.pop("samples") == before.pop("samples") + 3
    assert dump(after, {}) == dump(before, {})
    np.testing.assert_array_equal(outcome.scores, learner.predict(idle))
    assert not outcome.updated.any() and not outcome.rejected.any()


def test_weight_of_a_row_is_that_many_rows_at_once():
    """Not c repeated rows (each would take its own step), but one with delta = c."""
    x, y = np.array([[1.0, 2.0]]), np.array([1.0])
    one = make_learner(spec_of("hinge", dim=2, intercept=False, rho=10.0))
    one.learn(Batch.from_dense(x, y, np.array([4.0])))
    # a = 4 / (10 * 4), s = a |h|^2 = 1/2, tau = min(1, 1 / s) = 1, w = a tau h.
    np.testing.assert_allclose(one.weights, [0.1, 0.2])


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("loss", MARGIN_LOSSES)
def test_one_class_is_learned(loss, window):
    batch = Batch.from_dense(np.ones((30, 2)), np.ones(30))
    learner = make_learner(spec_of(loss, window, dim=2))
    learner.learn(batch)
    assert learner.predict(batch)[0] > 0.0


def test_zero_is_the_negative_label():
    x, _ = np.eye(4), None
    signs, bits = np.array([-1.0, 1, -1, 1]), np.array([0.0, 1, 0, 1])
    learners = [make_learner(spec_of("logistic", dim=4)) for _ in range(2)]
    for learner, labels in zip(learners, (signs, bits), strict=True):
        learner.learn(Batch.from_dense(x, labels))
    assert bytes_of(learners[0]) == bytes_of(learners[1])


@pytest.mark.parametrize("label", [2.0, 0.5, float("nan")])
def test_an_unknown_label_is_named_and_nothing_is_learned(label):
    batch, _ = rows_of(5)
    labels = batch.labels.copy()
    labels[3] = label
    bad = Batch(batch.indptr, batch.indices, batch.values, labels, batch.weights, 6)
    learner = make_learner(spec_of())
    before = bytes_of(learner)
    with pytest.raises(InvalidRow, match=f"row 3: the label must be -1, 0 or 1, got {label!r}"):
        learner.learn(bad)
    assert bytes_of(learner) == before


def test_regression_refuses_a_row_without_a_label():
    learner = make_learner(spec_of("squared", dim=2))
    with pytest.raises(InvalidRow, match="row 0: the label must be a finite number, got nan"):
        learner.learn(Batch.from_dense(np.ones((1, 2))))


def test_rows_of_another_width_are_refused():
    learner = make_learner(spec_of(dim=3))
    with pytest.raises(ShapeMismatch, match="rows of width 2 for a model of width 3"):
        learner.learn(Batch.from_dense(np.ones((1, 2)), np.ones(1)))
    with pytest.raises(ShapeMismatch):
        learner.predict(Batch.from_dense(np.ones((1, 2))))


@pytest.mark.parametrize("kappa", [None, 0.9], ids=["last", "average"])
def test_a_window_of_one_row_holds_that_row_alone(kappa):
    batch, x = rows_of(12, weighted=False)
    learner = make_learner(spec_of("squared_hinge", ("sliding", 1), kappa, retain=1))
    slow = reference.Reference("squared_hinge", ("sliding", 1), 0.001, kappa or 0.0)
    learner.learn(batch)
    for h, y in zip(x, batch.labels, strict=True):
        slow.learn(np.append(h, 1.0), y)
    np.testing.assert_allclose(
        np.append(learner.weights, learner.intercept), slow.served(), rtol=1e-9, atol=1e-9
    )
    assert learner.certificate().rows == 1


def test_the_ends_of_rho_give_numbers(subtests):
    for window, loss, rho in product(WINDOWS.values(), LOSSES, [1e-12, 1e12]):
        with subtests.test(window=window, loss=loss, rho=rho):
            batch, _ = rows_of(30, regression=loss not in MARGIN_LOSSES)
            learner = make_learner(spec_of(loss, window, 0.9, rho=rho))
            outcome = learner.learn(batch)
            assert np.isfinite(outcome.scores).all() and np.isfinite(learner.weights).all()
            certificate = learner.certificate()
            assert np.isfinite(
                [certificate.primal, certificate.dual, certificate.relative_gap]
            ).all()
            assert certificate.gap >= 0.0


def test_rows_of_any_size_never_make_a_number_that_is_none(subtests):
    for kappa, window, loss, sizes in product(
        [None, 0.9],
        WINDOWS.values(),
        LOSSES,
        [(1e-100,), (1e100,), (1.0, 1e100, 1e-100, 1e50, 1e-300)],
    ):
        with subtests.test(kappa=kappa, window=window, loss=loss, sizes=sizes):
            regression = loss not in MARGIN_LOSSES
            batch, x = rows_of(40, regression=regression, weighted=False)
            x = np.clip(x, -1, 1) * np.resize(sizes, 40)[:, None]
            learner = make_learner(spec_of(loss, window, kappa, rho=1e-6))
            outcome = learner.learn(Batch.from_dense(x, batch.labels))
            rejected = outcome.rejected
            assert np.isfinite(outcome.scores[~rejected]).all()
            assert np.isfinite(outcome.losses[~rejected]).all()
            assert (
                np.isnan(outcome.scores[rejected]).all()
                and np.isnan(outcome.losses[rejected]).all()
            )
            assert all(np.isfinite(array).all() for array in learner.state().values())
            assert learner.samples == 40 - rejected.sum()


@pytest.mark.parametrize("kappa", [None, 0.9], ids=["last", "average"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_row_with_an_infinite_loss_is_rejected_without_a_trace(window, kappa):
    batch, _ = rows_of(20, regression=True)
    learner = make_learner(spec_of("squared", window, kappa, retain=8))
    learner.learn(batch)
    learner.learn(Batch.from_dense(np.ones((1, 6)), np.array([1e100])))
    before = bytes_of(learner)
    huge = Batch.from_dense(np.full((2, 6), 1e100), np.zeros(2), np.array([1.0, 0.0]))
    outcome = learner.learn(huge)
    assert outcome.rejected.all() and not outcome.updated.any()
    assert np.isnan(outcome.scores).all() and np.isnan(outcome.losses).all()
    assert bytes_of(learner) == before


@pytest.mark.parametrize("kappa", [None, 0.9], ids=["last", "average"])
@pytest.mark.parametrize("window", [("infinite",), ("sliding", 1)])
def test_a_row_with_an_infinite_step_is_rejected_without_a_trace(window, kappa):
    """The smallest weight: rho Delta is 0, after the row in the window has been taken out."""
    learner = make_learner(spec_of("hinge", window, kappa, retain=8))
    tiny = Batch.from_dense(np.ones((1, 6)), np.ones(1), np.array([5e-324]))
    rows, _ = rows_of(6, weighted=False)
    first = rows[:0] if window[0] == "infinite" else rows
    learner.learn(first)
    before = bytes_of(learner)
    assert learner.learn(tiny).rejected.all()
    assert bytes_of(learner) == before
    assert not learner.learn(rows).rejected.any()


@pytest.mark.parametrize(("beta", "kappa"), [(0.9, 0.999), (0.5, 1.0), (0.98, 0.5), (1e-3, 0.9)])
def test_the_average_stays_exact_over_long_runs(beta, kappa):
    """kappa > beta, where the two sums grow apart without the flush."""
    n = 400 if DISABLED else 6000
    random = np.random.default_rng(3)
    x = random.standard_normal((n, 3))
    y = np.where(x[:, 0] + 0.5 * random.standard_normal(n) > 0, 1.0, -1.0)
    learner = make_learner(
        spec_of("hinge", ("exponential", beta), kappa, dim=3, intercept=False, rho=0.1)
    )
    learner.learn(Batch.from_dense(x, y))
    u, delta, average, weight = np.zeros(3), 0.0, np.zeros(3), 0.0
    for h, label in zip(x, y, strict=True):
        u, delta = beta * u, beta * delta + 1
        room = 0.1 * delta
        tau = reference.step("hinge", h @ u / room, h @ h / room, label, None)
        u = u + tau * h
        average, weight = kappa * average + u / room, kappa * weight + 1
    np.testing.assert_allclose(learner.weights, average / weight, rtol=1e-9, atol=1e-11)


def test_a_sliding_window_stays_exact_over_long_runs():
    n, length = (600, 5) if DISABLED else (20_000, 50)
    random = np.random.default_rng(5)
    x = random.standard_normal((n, 4)) * 10 ** random.uniform(-3, 3, (n, 1))
    y = np.where(random.random(n) > 0.5, 1.0, -1.0)
    weights = 10 ** random.uniform(-2, 2, n)
    learner = make_learner(
        spec_of("hinge", ("sliding", length), dim=4, retain=length, intercept=False)
    )
    learner.learn(Batch.from_dense(x, y, weights))
    state = learner.state()
    anew = (state["ring_weights"] * state["ring_duals"]) @ x[-length:]
    np.testing.assert_allclose(state["v"][:4], anew, rtol=1e-12, atol=1e-12 * np.abs(anew).max())
    assert state["delta"] == pytest.approx(weights[-length:].sum(), rel=1e-12)


def sliding_stream(n, length, kappa=None, seed=5, giants=False):
    """A learner with a short window, and rows of very unequal weight."""
    random = np.random.default_rng(seed)
    x, y = random.standard_normal((n, 3)), random.standard_normal(n)
    weights = 10 ** random.uniform(-1, 1, n)
    if giants:
        weights[random.random(n) < 0.02] = 1e15
    spec = spec_of("absolute", ("sliding", length), kappa, dim=3, retain=length, rho=0.1)
    return make_learner(spec), Batch.from_dense(x, y, weights)


def summed_anew(state):
    """v and Delta recomputed from the rows in the window, in order."""
    v, delta = np.zeros(4), 0.0
    for i, (c, dual) in enumerate(zip(state["ring_weights"], state["ring_duals"], strict=True)):
        at = slice(state["ring_indptr"][i], state["ring_indptr"][i + 1])
        v[state["ring_indices"][at]] += (c * dual) * state["ring_values"][at]
        v[3] += c * dual
        delta += c
    return v, delta


@pytest.mark.parametrize("kappa", [None, 0.9], ids=["last", "average"])
def test_sliding_window_is_summed_again_every_hundred_lengths(kappa):
    learner, batch = sliding_stream(500, 5, kappa)
    learner.learn(batch[:499])
    v, _ = summed_anew(learner.state())
    assert learner.state()["v"].tolist() != v.tolist(), "rounding has gathered"
    learner.learn(batch[499:])
    v, delta = summed_anew(learner.state())
    assert learner.state()["v"].tolist() == v.tolist()
    assert learner.state()["delta"] == delta


@pytest.mark.parametrize("kappa", [None, 0.9], ids=["last", "average"])
@pytest.mark.parametrize("place", [0, 20])
def test_outsized_row_has_no_effect_after_it_leaves_the_window(kappa, place):
    learner, batch = sliding_stream(60, 8, kappa)
    batch.weights[place] = 1e15
    learner.learn(batch)
    v, delta = summed_anew(learner.state())
    np.testing.assert_allclose(learner.state()["v"], v, rtol=1e-12, atol=1e-13)
    assert learner.state()["delta"] == pytest.approx(delta, rel=1e-14)


def test_outsized_weight_of_a_row_without_step_has_no_effect():
    window = ("sliding", 3)
    learner = make_learner(spec_of("epsilon_insensitive", window, dim=1, retain=3))
    weights = [0.1, 0.1, 1e17, 0.1, 0.1, 0.1, 0.1]
    rows = Batch.from_dense(np.ones((7, 1)), [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0], weights)
    learner.learn(rows[:3])
    assert learner.state()["ring_duals"][2] == 0.0
    learner.learn(rows[3:])
    assert learner.state()["delta"] == pytest.approx(0.3, rel=1e-14)


@pytest.mark.parametrize("kappa", [None, 0.9], ids=["last", "average"])
@pytest.mark.parametrize("giants", [False, True])
def test_restored_learner_sums_again_at_the_same_rows(kappa, giants):
    whole, batch = sliding_stream(620, 3, kappa, giants=giants)
    learners = [whole]
    for first in range(0, 620, 10):
        part = batch[first : first + 10]
        for learner in learners:
            learner.learn(part)
        other, _ = sliding_stream(1, 3, kappa)
        other.restore(whole.state())
        learners = [*learners[:4], other]
    assert len({bytes_of(learner) for learner in learners}) == 1


def test_rounding_left_by_evictions_is_no_weight():
    x = np.zeros((40, 30))
    x[np.arange(40), np.arange(40) % 30] = 0.1
    x[:, 29] = 1.0
    y = np.where(np.arange(40) % 3 == 0, 1.0, -1.0)
    learner = make_learner(
        spec_of("squared_hinge", ("sliding", 3), dim=30, retain=3, intercept=False)
    )
    learner.learn(Batch.from_dense(x, y))
    assert learner.nonzeros <= 4


@pytest.mark.parametrize("window", [("infinite",), ("exponential", 0.99), ("sliding", 50)])
def test_memory_is_bounded_by_what_is_retained(window):
    random = np.random.default_rng(8)
    dim = 40
    learner = make_learner(spec_of("hinge", window, dim=dim, retain=50))
    ring = learner._ring
    sizes = set()
    for _ in range(3 if DISABLED else 60):
        x = random.standard_normal((100, dim)) * (random.random((100, dim)) < 0.5)
        learner.learn(Batch.from_dense(x, np.where(x[:, 0] > 0, 1.0, -1.0)))
        sizes.add(ring.values.nbytes + ring.indices.nbytes + ring.rows.nbytes)
    assert max(sizes) <= 4 * 50 * (dim * 12 + 24) + 20_000
    assert len(learner.state()["ring_labels"]) == 50


def test_rows_in_bulk_leave_the_state_that_single_rows_leave(monkeypatch, subtests):
    for retain, window in product([1, 3, 20, 60], [("infinite",), ("exponential", 0.9)]):
        with subtests.test(retain=retain, window=window):
            monkeypatch.setattr("dualstream.solvers.online.dual_ascent.learner._BULK_ROWS", 8)
            batch, x = rows_of(60, seed=retain)
            weights = batch.weights.copy()
            weights[30:50] = 0.0 if retain == 20 else 1.0
            weights[:: 7 if retain == 60 else 60] = 0.0
            batch = Batch.from_dense(x, batch.labels, weights)
            spec = spec_of("squared_hinge", window, kappa=0.9, retain=retain)
            bulk, single = make_learner(spec), make_learner(spec)
            for some in (batch[:5], batch[5:40], batch, batch[40:], batch):
                bulk.learn(some)
                for i in range(len(some)):
                    single.learn(some[i : i + 1])
                assert bytes_of(bulk) == bytes_of(single)


def rows_in_bulk(n, regression):
    """Rows in separate arrays: two have weight 0, and in a regression one is rejected."""
    batch, _ = rows_of(n, regression=regression, weighted=False)
    labels, values, weights = batch.labels.copy(), batch.values.copy(), batch.weights.copy()
    weights[[3, 14]] = 0.0
    if regression:
        labels[[9, 11]] = 1e100, 0.0
        values[batch.indptr[11] : batch.indptr[12]] = 1e100
    else:
        labels[labels < 0.0] = 0.0
    return Batch(batch.indptr.copy(), batch.indices.copy(), values, labels, weights, batch.dim)


def _but_weights(batch):
    return batch.indptr, batch.indices, batch.values, batch.labels


def refit_it(learner):
    refitting = Refitting(problems_of(learner), 1e-3, 20)
    assert refitting.run()
    result = refitting.refitted()
    return enter_refit(learner, result.arrays), result.certificate


LOOKS = {
    "nobody": lambda learner, batch: learner.retained,
    "a row": lambda learner, batch: learner.learn(batch[3:4]).scores.tolist(),
    "some rows": lambda learner, batch: learner.learn(batch[:7]).losses.tolist(),
    "rows in bulk": lambda learner, batch: learner.learn(batch).updated.tolist(),
    "rows in bulk, most of weight 0": lambda learner, batch: learner.learn(
        Batch(*_but_weights(batch), np.where(np.arange(len(batch)) < 15, 0.0, 1.0), batch.dim)
    ).updated.tolist(),
    "certificate": lambda learner, batch: learner.certificate(),
    "unlearning": lambda learner, batch: learner.unlearn(2),
    "refit": lambda learner, batch: refit_it(learner),
    "prediction": lambda learner, batch: learner.predict(batch).tolist(),
    "state": lambda learner, batch: learner.restore(learner.state()),
}


def test_reading_pending_rows_equals_single_rows(monkeypatch, subtests):
    for look, (retain, n, before, waits), (loss, window, kappa) in product(
        LOOKS,
        [(20, 24, 4, True), (24, 24, 0, True), (24, 24, 4, False), (20, 60, 4, False)],
        [
            ("hinge", ("infinite",), 0.9),
            ("logistic", ("exponential", 0.9), None),
            ("squared", ("infinite",), None),
            ("squared", ("exponential", 0.99), 0.9),
        ],
    ):
        with subtests.test(
            look=look,
            retain=retain,
            n=n,
            before=before,
            waits=waits,
            loss=loss,
            window=window,
            kappa=kappa,
        ):
            monkeypatch.setattr("dualstream.solvers.online.dual_ascent.learner._BULK_ROWS", 8)
            batch = rows_in_bulk(n, loss not in MARGIN_LOSSES)
            spec = spec_of(loss, window, kappa, retain=retain)
            bulk, single = make_learner(spec), make_learner(spec)
            for some in (batch[:before], batch):
                outcome = bulk.learn(some)
                for i in range(len(some)):
                    single.learn(some[i : i + 1])
            assert outcome.rejected.sum() == (loss not in MARGIN_LOSSES)
            assert (bulk._ring._pending is not None) == waits
            kept = bulk.bytes_held
            assert repr(LOOKS[look](bulk, batch)) == repr(LOOKS[look](single, batch))
            assert bulk.retained == single.retained
            assert bytes_of(bulk) == bytes_of(single)
            assert bulk._ring._pending is None
            assert look == "rows in bulk" or bulk.bytes_held <= kept + 1000
            for i in range(9):
                bulk.learn(batch[i : i + 1])
                single.learn(batch[i : i + 1])
            assert bytes_of(bulk) == bytes_of(single)


def test_labels_that_their_owner_writes_over_later_are_learned_as_they_were():
    rows, labels = rows_in_bulk(300, regression=False), np.where(np.arange(300) % 3, 1.0, -1.0)
    learner = make_learner(spec_of("squared", retain=300))
    learner.learn(rows.with_labels(labels))
    assert learner._ring._pending is not None
    kept = labels[rows.weights > 0.0].tolist()
    labels[:] = 7.0
    assert learner.state()["ring_labels"].tolist() == kept


def test_a_long_row_does_not_keep_its_room_for_ever():
    learner = make_learner(spec_of("hinge", dim=100_000, retain=4))
    wide = Batch.from_dense(np.ones((1, 100_000)), np.ones(1))
    narrow = Batch.from_csr([0, 1], [5], [1.0], [1.0], dim=100_000)
    learner.learn(wide)
    assert len(learner._ring.values) > 100_000
    for _ in range(30):
        learner.learn(narrow)
    assert len(learner._ring.values) <= 2048


def test_every_number_that_learning_changes_is_part_of_the_state():
    assert sorted(dual_ascent.STATE_FLOATS.values()) == list(range(_l2.RHO))
    assert sorted(dual_ascent.STATE_INTS.values()) == list(range(_l2.FIRST))


def test_no_state_of_another_shape_is_restored():
    batch, _ = rows_of(20)
    learner = make_learner(spec_of("hinge", ("sliding", 5), 0.9, retain=5))
    learner.learn(batch)
    good, before = learner.state(), bytes_of(learner)
    wrong = [
        {name: array for name, array in good.items() if name != "v"},
        {name: array for name, array in good.items() if name != "ring_duals"},
        good | {"v": np.zeros(3)},
        good | {"z": np.zeros(3)},
        good | {"delta": np.array(np.nan)},
        good | {"samples": np.zeros(2, np.int64)},
        good | {"ring_indices": good["ring_indices"] + 100},
        good | {"ring_indptr": good["ring_indptr"][:-1]},
        good | {"ring_duals": good["ring_duals"][:-1]},
        good | {"ring_values": good["ring_values"] * np.nan},
    ]
    for state in wrong:
        with pytest.raises(CorruptState):
            learner.restore(state)
        assert bytes_of(learner) == before
    small = make_learner(spec_of("hinge", ("sliding", 3), 0.9, retain=3))
    with pytest.raises(CorruptState, match="5 retained rows where at most 3"):
        small.restore(good)


SIZES = st.sampled_from([0.0, 5e-324, 1e-200, 1e-100, 1e-8, 0.5, 1.0, 3.0, 1e8, 1e50, 1e100])
ROW = st.tuples(SIZES, SIZES, st.booleans(), SIZES)


@examples(100 if DISABLED else 800)
@given(
    rows=st.lists(ROW, min_size=1, max_size=14),
    loss=st.sampled_from(LOSSES),
    window=st.sampled_from(
        [
            ("infinite",),
            ("exponential", 0.5),
            ("exponential", 5e-324),
            ("sliding", 1),
            ("sliding", 3),
        ]
    ),
    kappa=st.sampled_from([None, 0.0, 5e-324, 1e-60, 0.9, 1.0]),
    rho=st.sampled_from([1e-12, 1e-3, 1e12]),
)
def test_state_is_finite_and_split_batches_equal_the_whole_for_any_input(
    rows, loss, window, kappa, rho
):
    x = np.array([[row[0], -row[1]] for row in rows])
    signs = np.array([1.0 if row[2] else -1.0 for row in rows])
    labels = signs if loss in MARGIN_LOSSES else signs * x[:, 0]
    batch = Batch.from_dense(x, labels, [row[3] for row in rows])
    spec = spec_of(loss, window, kappa, dim=2, rho=rho, retain=4)
    whole, parts = make_learner(spec), make_learner(spec)
    outcome = whole.learn(batch)
    for i in range(len(rows)):
        before = bytes_of(parts)
        if parts.learn(batch[i : i + 1]).rejected[0]:
            assert outcome.rejected[i]
            assert bytes_of(parts) == before
        assert all(np.isfinite(array).all() for array in parts.state().values())
    assert bytes_of(whole) == bytes_of(parts)
    assert whole.samples == len(rows) - outcome.rejected.sum()
    assert np.isfinite(outcome.scores[~outcome.rejected]).all()
    assert np.isfinite(outcome.losses[~outcome.rejected]).all()
    other = make_learner(spec)
    other.restore(whole.state())
    assert bytes_of(other) == bytes_of(whole)
    assert not whole.certificate().gap < 0.0


def test_an_empty_batch_changes_nothing():
    batch, _ = rows_of(10)
    learner = make_learner(spec_of())
    learner.learn(batch)
    before = bytes_of(learner)
    assert len(learner.learn(batch[:0]).scores) == 0
    assert bytes_of(learner) == before
    assert len(learner.predict(batch[:0])) == 0


def test_probabilities_exist_for_log_odds_only():
    assert make_learner(spec_of("hinge")).probabilities(np.zeros(1)) is None
    probabilities = make_learner(spec_of("logistic")).probabilities(np.array([0.0, 1e4, -1e4]))
    assert probabilities.tolist() == [0.5, 1.0, 0.0]


def test_kappa_zero_serves_the_last_iterate():
    batch, _ = rows_of(30)
    last, zero = (make_learner(spec_of("hinge", kappa=kappa)) for kappa in (None, 0.0))
    last.learn(batch)
    zero.learn(batch)
    np.testing.assert_array_equal(last.weights, zero.weights)


def test_a_tiny_kappa_still_averages():
    batch, x = rows_of(30, weighted=False)
    learner = make_learner(spec_of("hinge", ("exponential", 0.9), 1e-60))
    slow = reference.Reference("hinge", ("exponential", 0.9), 0.001, 1e-60)
    learner.learn(batch)
    for h, y in zip(x, batch.labels, strict=True):
        slow.learn(np.append(h, 1.0), y)
    served = np.append(learner.weights, learner.intercept)
    np.testing.assert_allclose(served, slow.served(), rtol=1e-9, atol=1e-9)

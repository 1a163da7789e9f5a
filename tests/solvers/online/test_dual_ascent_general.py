"""O-DCA with elastic net and entropy: against the definitions, every step by bisection."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dualstream.solvers import Batch, CorruptState, make_learner
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.losses.loss_table import LOSSES, MARGIN_LOSSES, make_loss
from dualstream.solvers.online.dual_ascent import general_kernels as _general, kernels as _l2
from dualstream.solvers.online.dual_ascent.replay import draw_visits
from tests.fuzzing import examples
from tests.solvers import reference
from tests.solvers.general_reference import (
    ELASTIC,
    ENTROPY,
    REGULARIZERS,
    General,
    bisected,
    conjugate,
)
from tests.solvers.online.dual_ascent_support import WINDOWS, bytes_of, rows_of, spec_of, visit


def test_learner_is_the_reference(subtests):
    cases = product(WINDOWS.values(), LOSSES, REGULARIZERS.values(), [0, 2])
    for number, (window, loss, regularizer, replay) in enumerate(cases):
        kappa = (None, 0.8, 0.8, None)[number % 4]
        with subtests.test(
            replay=replay, kappa=kappa, window=window, loss=loss, regularizer=regularizer
        ):
            n = 16
            batch, x = rows_of(n, regression=loss not in MARGIN_LOSSES)
            learner = make_learner(
                spec_of(
                    loss, window, kappa, rho=0.2, regularizer=regularizer, replay={"steps": replay}
                )
            )
            slow = General(loss, window, 0.2, kappa or 0.0, regularizer=regularizer)
            outcome = learner.learn(batch)
            visits = iter(draw_visits(0, 0, replay * n))
            for h, y, c in zip(x, batch.labels, batch.weights, strict=True):
                slow.learn(np.append(h, 1.0), y, c)
                for _ in range(replay if c > 0.0 else 0):
                    slow.visit(next(visits))
            np.testing.assert_allclose(outcome.scores, slow.scores, rtol=1e-7, atol=1e-8)
            served = np.append(learner.weights, learner.intercept)
            np.testing.assert_allclose(served, slow.served(), rtol=1e-7, atol=1e-8)
            certificate = learner.certificate()
            result = certificate.primal, certificate.dual, certificate.gap
            assert result == pytest.approx(slow.certificate(), rel=1e-7, abs=1e-8)
            assert certificate.gap >= 0.0


def objective(loss, regularizer, f, a, h, y, tau):
    parameter = reference.LOSSES[loss]
    lo, hi = reference.domain(loss, y, parameter)
    assert lo <= tau <= hi
    cost = reference.conjugate(loss, tau, y, parameter)
    return cost + conjugate(regularizer, f + a * tau * h) / a


def test_step_is_the_least_of_the_dual_in_one_variable(subtests):
    for regularizer, loss in product(REGULARIZERS.values(), LOSSES):
        with subtests.test(regularizer=regularizer, loss=loss):
            random = np.random.default_rng(2)
            floats, ints = np.zeros(_l2.N_FLOATS), np.zeros(_l2.N_INTS, np.int64)
            floats[_l2.LOSS : _l2.POSITIVE] = make_loss(loss, reference.LOSSES[loss]).numbers
            floats[_l2.THRESHOLD] = 0.0 if regularizer == ENTROPY else regularizer["delta"]
            floats[_l2.BIAS] = 1.0
            ints[_l2.ENTROPY] = regularizer == ENTROPY
            for _ in range(10 if DISABLED else 60):
                d = int(random.integers(1, 9))
                h = (
                    random.standard_normal(d)
                    * (random.random(d) < 0.7)
                    * 10 ** random.uniform(-1, 1)
                )
                h[-1] = 1.0
                a, dashed = 10 ** random.uniform(-3, 3), random.standard_normal(d)
                old = random.choice([0.0, 0.3]) if loss not in MARGIN_LOSSES else 0.0
                y = float(random.choice([-1.0, 1.0]))
                y = y if loss in MARGIN_LOSSES else y * random.uniform(0.1, 2.0)
                positions = np.flatnonzero(h[:-1]).astype(np.int32)
                w = dashed.reshape(-1, 1).copy()
                entries = (positions, h[positions], 0, len(positions))
                rest = _general.rest_of(positions, 0, len(positions), w, floats, ints, 1.0)
                tau, cost = _general.best_dual(
                    *entries, w, floats, ints, 1.0, a, old, h @ h, y, *rest
                )
                f = dashed - a * old * h
                assert cost == pytest.approx(
                    reference.conjugate(loss, tau, y, reference.LOSSES[loss]), rel=1e-12, abs=1e-14
                )
                result = objective(loss, regularizer, f, a, h, y, tau)
                best = objective(
                    loss, regularizer, f, a, h, y, bisected(loss, regularizer, f, a, h, y)
                )
                assert result - best <= 1e-15 * max(1.0, abs(best), conjugate(regularizer, f) / a)


def test_a_level_response_takes_the_end_of_the_domain_or_0():
    """No coordinate is active: phi is 0, whatever tau."""
    rows = Batch.from_dense(np.full((2, 1), 1e-9), [2.0, 0.0])
    learner = make_learner(
        spec_of("absolute", dim=1, regularizer=ELASTIC, intercept=False, rho=1.0)
    )
    learner.learn(rows)
    assert learner.state()["ring_duals"].tolist() == [1.0, 0.0]
    assert learner.weights[0] == 0.0 and learner.nonzeros == 0


def test_elastic_net_without_its_l1_part_is_l2(subtests):
    for replay, kappa, window, loss in product([0, 2], [None, 0.8], WINDOWS.values(), LOSSES):
        with subtests.test(replay=replay, kappa=kappa, window=window, loss=loss):
            batch, _ = rows_of(60, regression=loss not in MARGIN_LOSSES)
            l2, elastic = (
                make_learner(
                    spec_of(
                        loss, window, kappa, rho=0.05, replay={"steps": replay}, regularizer=each
                    )
                )
                for each in ("l2", {"kind": "elastic_net", "delta": 0})
            )
            np.testing.assert_allclose(
                elastic.learn(batch).scores, l2.learn(batch).scores, rtol=1e-8, atol=1e-9
            )
            a, b = elastic.certificate(), l2.certificate()
            assert (a.primal, a.dual, a.gap) == pytest.approx(
                (b.primal, b.dual, b.gap), rel=1e-8, abs=1e-9
            )


def test_dual_never_decreases(subtests):
    for regularizer, window, loss in product(REGULARIZERS.values(), WINDOWS.values(), LOSSES):
        with subtests.test(regularizer=regularizer, window=window, loss=loss):
            batch, _ = rows_of(40, regression=loss not in MARGIN_LOSSES)
            learner = make_learner(
                spec_of(loss, window, retain=30, rho=0.05, regularizer=regularizer)
            )
            learner.learn(batch)
            before = learner.certificate().dual
            for t in range(60):
                visit(learner, draw_visits(7, t, 1))
                dual = learner.certificate().dual
                assert dual >= before - 5e-16 * max(1.0, abs(before))
                before = dual


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_many_visits_close_the_gap(loss, subtests):
    for regularizer, window in product(REGULARIZERS.values(), WINDOWS.values()):
        with subtests.test(regularizer=regularizer, window=window):
            batch, _ = rows_of(30, regression=loss == "squared")
            learner = make_learner(spec_of(loss, window, rho=0.1, regularizer=regularizer))
            learner.learn(batch)
            rows = 7 if window[0] == "sliding" else len(learner.state()["ring_duals"])
            random = np.random.default_rng(0)
            for _ in range(300):
                visit(learner, (random.permutation(rows) + 0.5) / rows)
            certificate = learner.certificate()
            assert 0.0 <= certificate.gap < 1e-9
            assert certificate.primal - certificate.dual == pytest.approx(
                certificate.gap, abs=1e-12
            )


def test_gap_is_primal_less_dual_and_never_negative(subtests):
    for kappa, regularizer, window, loss in product(
        [None, 0.9], REGULARIZERS.values(), WINDOWS.values(), LOSSES
    ):
        with subtests.test(kappa=kappa, regularizer=regularizer, window=window, loss=loss):
            batch, _ = rows_of(40, regression=loss not in MARGIN_LOSSES)
            learner = make_learner(
                spec_of(loss, window, kappa, retain=10, strength=2.0, regularizer=regularizer)
            )
            for i in range(40):
                learner.learn(batch[i : i + 1])
                certificate = learner.certificate()
                assert certificate.gap >= 0.0
                assert certificate.primal - certificate.dual == pytest.approx(
                    certificate.gap, rel=1e-11, abs=1e-12 * max(1.0, abs(certificate.primal))
                )


def test_weights_before_any_row_are_those_of_no_dual_variables(subtests):
    for regularizer in REGULARIZERS.values():
        with subtests.test(regularizer=regularizer):
            for intercept in (True, False):
                learner = make_learner(
                    spec_of(kappa=0.9, regularizer=regularizer, intercept=intercept)
                )
                share = 1.0 / (6 + intercept) if regularizer == ENTROPY else 0.0
                assert learner.weights.tolist() == [share] * 6
                assert learner.intercept == (share if intercept else 0.0)
                row = Batch.from_dense(np.ones((1, 6)), np.ones(1))
                expected = learner.predict(row)[0]
                assert expected == pytest.approx(share * (6 + intercept))
                assert learner.learn(row).scores[0] == expected


def test_entropy_stays_on_the_simplex():
    batch, _ = rows_of(50)
    for kappa in (None, 0.9):
        learner = make_learner(spec_of("hinge", kappa=kappa, regularizer=ENTROPY, rho=0.01))
        learner.learn(batch)
        weights = np.append(learner.weights, learner.intercept)
        assert weights.min() >= 0.0 and weights.sum() == pytest.approx(1.0, rel=1e-14)


def test_elastic_net_leaves_weak_features_out():
    random = np.random.default_rng(4)
    x = random.standard_normal((300, 20))
    y = np.where(x[:, 0] - x[:, 3] > 0, 1.0, -1.0)
    learner = make_learner(
        spec_of("logistic", dim=20, rho=0.1, regularizer={"kind": "elastic_net", "delta": 1.5})
    )
    learner.learn(Batch.from_dense(x, y))
    assert np.flatnonzero(learner.weights).tolist() == [0, 3]
    assert learner.nonzeros == 2


def test_a_state_without_its_average_is_refused(subtests):
    for regularizer, window in product(REGULARIZERS.values(), WINDOWS.values()):
        with subtests.test(regularizer=regularizer, window=window):
            batch, _ = rows_of(20)
            learner = make_learner(spec_of("hinge", window, 0.9, regularizer=regularizer))
            learner.learn(batch)
            state = learner.state()
            del state["average"]
            before = bytes_of(learner)
            with pytest.raises(CorruptState):
                learner.restore(state)
            assert bytes_of(learner) == before


SIZES = st.sampled_from([0.0, 5e-324, 1e-200, 1e-100, 1e-8, 0.5, 1.0, 3.0, 1e8, 1e50, 1e100])
ROW = st.tuples(SIZES, SIZES, st.booleans(), SIZES)


@examples(100 if DISABLED else 600)
@given(
    rows=st.lists(ROW, min_size=1, max_size=10),
    loss=st.sampled_from(LOSSES),
    window=st.sampled_from([("infinite",), ("exponential", 0.5), ("sliding", 1), ("sliding", 3)]),
    kappa=st.sampled_from([None, 0.9, 1.0]),
    rho=st.sampled_from([1e-12, 1e-3, 1e12]),
    regularizer=st.sampled_from([ELASTIC, ENTROPY]),
    steps=st.sampled_from([0, 2]),
)
def test_state_is_finite_and_split_batches_equal_the_whole_for_any_input(
    rows, loss, window, kappa, rho, regularizer, steps
):
    x = np.array([[row[0], -row[1]] for row in rows])
    signs = np.array([1.0 if row[2] else -1.0 for row in rows])
    labels = signs if loss in MARGIN_LOSSES else signs * x[:, 0]
    batch = Batch.from_dense(x, labels, [row[3] for row in rows])
    spec = spec_of(
        loss, window, kappa, dim=2, rho=rho, retain=4, regularizer=regularizer,
        replay={"steps": steps},
    )  # fmt: skip
    whole, parts = make_learner(spec), make_learner(spec)
    outcome = whole.learn(batch)
    for i in range(len(rows)):
        before = bytes_of(parts)
        if parts.learn(batch[i : i + 1]).rejected[0]:
            assert outcome.rejected[i]
            assert bytes_of(parts) == before
        assert all(np.isfinite(array).all() for array in parts.state().values())
    assert bytes_of(whole) == bytes_of(parts)
    assert np.isfinite(outcome.scores[~outcome.rejected]).all()
    assert not whole.certificate().gap < 0.0

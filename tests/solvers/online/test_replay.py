"""Replays of O-DCA: against the reference, and that the dual only goes up."""

from itertools import product

import numpy as np
import pytest

from dualstream.solvers import Batch, dump, make_learner
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.losses.loss_table import LOSSES, MARGIN_LOSSES
from dualstream.solvers.online.dual_ascent import learner as dual_ascent
from dualstream.solvers.online.dual_ascent.replay import draw_visits
from tests.solvers import reference
from tests.solvers.golden_cells import COSINES, NUMBERS, learner_of
from tests.solvers.online.dual_ascent_support import WINDOWS, bytes_of, rows_of, spec_of, visit

OPTIMA = NUMBERS["odca_optimum_l2_rho0.01"]


def test_visits_are_the_published_sequence_in_any_portions():
    # The first three numbers of SplitMix64 from 0.
    published = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
    assert draw_visits(0, 0, 3).tolist() == [(z >> 11) / 2**53 for z in published]
    whole = draw_visits(2**63 - 1, 5, 100)
    parts = [draw_visits(2**63 - 1, 5 + 10 * i, 10) for i in range(10)]
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert whole.min() >= 0.0 and whole.max() < 1.0 and len(set(whole.tolist())) == 100
    assert draw_visits(1, 0, 3).tolist() != draw_visits(2, 0, 3).tolist()
    assert len(draw_visits(3, 4, 0)) == 0


def test_replay_is_the_references(subtests):
    for kappa, window, loss in product([None, 0.8], WINDOWS.values(), LOSSES):
        with subtests.test(kappa=kappa, window=window, loss=loss):
            batch, x = rows_of(40, regression=loss not in MARGIN_LOSSES)
            learner = make_learner(spec_of(loss, window, kappa, rho=0.05, replay={"steps": 3}))
            slow = reference.Reference(loss, window, 0.05, kappa or 0.0)
            outcome = learner.learn(batch)
            visits = iter(draw_visits(0, 0, 3 * 40))
            for h, y, c in zip(x, batch.labels, batch.weights, strict=True):
                slow.learn(np.append(h, 1.0), y, c)
                for _ in range(3 if c > 0.0 else 0):
                    slow.visit(next(visits))
            np.testing.assert_allclose(outcome.scores, slow.scores, rtol=1e-8, atol=1e-9)
            served = np.append(learner.weights, learner.intercept)
            np.testing.assert_allclose(served, slow.served(), rtol=1e-8, atol=1e-9)
            certificate = learner.certificate()
            result = certificate.primal, certificate.dual, certificate.gap
            assert result == pytest.approx(slow.certificate(), rel=1e-8, abs=1e-9)


def test_dual_never_decreases(subtests):
    for fixed, window, loss in product(
        [{"rho": 0.01}, {"strength": 2.0}], WINDOWS.values(), LOSSES
    ):
        with subtests.test(fixed=fixed, window=window, loss=loss):
            batch, _ = rows_of(60, regression=loss not in MARGIN_LOSSES)
            learner = make_learner(spec_of(loss, window, retain=30, **fixed))
            learner.learn(batch)
            before = learner.certificate().dual
            for t in range(100):
                visit(learner, draw_visits(7, t, 1))
                dual = learner.certificate().dual
                assert dual >= before - 5e-16 * max(1.0, abs(before))
                before = dual


@pytest.mark.skipif(DISABLED, reason="many passes, in plain Python")
@pytest.mark.parametrize("cell", OPTIMA)
def test_many_visits_reach_the_golden_optimum(cell, adult):
    golden, learner = OPTIMA[cell], learner_of(cell, adult)
    rows = 60 if cell.startswith("sliding") else 200
    random = np.random.default_rng(0)
    # In order, newest first, it would take many times as many.
    for _ in range(2 * golden["passes"]):
        visit(learner, (random.permutation(rows) + 0.5) / rows)
    certificate = learner.certificate()
    assert certificate.dual == pytest.approx(golden["optimum"], rel=1e-8)
    assert certificate.primal == pytest.approx(golden["optimum"], rel=1e-8)
    assert 0.0 <= certificate.gap < 1e-9
    assert learner.weights[:10] == pytest.approx(golden["w10"], abs=1e-4)
    assert np.linalg.norm(learner.weights) == pytest.approx(golden["norm"], rel=1e-5)
    assert learner.weights @ COSINES == pytest.approx(golden["dot_cos"], abs=1e-4)


def test_an_infinite_window_is_replayed_from_what_is_retained():
    batch, _ = rows_of(60, weighted=False)
    learner = make_learner(spec_of("hinge", rho=0.05, retain=5, replay={"steps": 4}))
    learner.learn(batch[:55])
    old = learner.state()["ring_duals"]
    learner.learn(batch[55:])
    assert len(old) == len(learner.state()["ring_duals"]) == 5
    assert learner.certificate().gap >= 0.0


@pytest.mark.parametrize("regularizer", ["l2", "elastic_net", "entropy"])
@pytest.mark.parametrize("beta", [1e-200, 5e-324])
def test_rows_whose_weight_has_vanished_are_left_alone(beta, regularizer):
    batch, _ = rows_of(30, weighted=False)
    window = ("exponential", beta)
    learner = make_learner(spec_of("hinge", window, retain=30, rho=0.1, regularizer=regularizer))
    learner.learn(batch)
    before = learner.state()
    visit(learner, (np.arange(2, 30) + 0.5) / 30)
    after = learner.state()
    assert after.pop("visits") == before.pop("visits") + 28
    assert dump(after, {}) == dump(before, {})


@pytest.mark.parametrize("kappa", [None, 0.99], ids=["last", "average"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize(
    "replay", [{"steps": 3}, {"until_gap": 1e-3, "every": 7, "max_steps": 3}], ids=["steps", "gap"]
)
def test_batch_equals_a_loop_and_restored_learner_continues(replay, window, kappa):
    batch, _ = rows_of(150)
    spec = spec_of("logistic", window, kappa, retain=9, replay=replay, seed=5)
    whole, parts, restored = (make_learner(spec) for _ in range(3))
    whole.learn(batch)
    for i in range(150):
        parts.learn(batch[i : i + 1])
    assert bytes_of(parts) == bytes_of(whole)
    parts = make_learner(spec)
    parts.learn(batch[:75])
    restored.learn(batch[:20])
    restored.restore(parts.state())
    restored.learn(batch[75:])
    assert bytes_of(restored) == bytes_of(whole)
    other = make_learner(spec | {"seed": 6})
    other.learn(batch)
    assert dump(other.state(), {}) != bytes_of(whole)


def test_more_visits_than_are_drawn_at_once_change_nothing(monkeypatch):
    batch, _ = rows_of(50)
    spec = spec_of("hinge", retain=20, replay={"steps": 4})
    whole, parts = make_learner(spec), make_learner(spec)
    whole.learn(batch)
    monkeypatch.setattr(dual_ascent, "_AHEAD", 6)
    parts.learn(batch)
    assert bytes_of(parts) == bytes_of(whole)


def test_a_gap_is_closed_every_so_many_rows():
    batch, _ = rows_of(80, weighted=False)
    spec = spec_of("logistic", ("sliding", 20), rho=0.05, retain=20)
    plain = make_learner(spec)
    gap = make_learner(spec | {"replay": {"until_gap": 0.01, "every": 20, "max_steps": 50}})
    for first in range(0, 80, 20):
        part = batch[first : first + 20]
        plain.learn(part)
        gap.learn(part[:19])
        gap.learn(part[19:])
        assert gap.certificate().relative_gap <= 0.01 < plain.certificate().relative_gap
    capped = make_learner(spec | {"replay": {"until_gap": 1e-12, "every": 20, "max_steps": 3}})
    capped.learn(batch[:79])
    assert capped.state()["visits"] == 3 * 3 * 20
    assert capped.state()["since_replay"] == 19


def test_a_visit_that_would_not_be_finite_changes_nothing():
    rows = Batch.from_dense(np.array([[1e100], [1.0], [1e-100]]), np.ones(3))
    for loss in ("logistic", "hinge", "squared"):
        for window in WINDOWS.values():
            learner = make_learner(spec_of(loss, window, dim=1, replay={"steps": 20}))
            learner.learn(rows)
            learner.learn(rows)
            assert all(np.isfinite(array).all() for array in learner.state().values())

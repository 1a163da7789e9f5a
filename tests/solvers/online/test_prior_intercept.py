"""`intercept: prior`: the log odds of the labels so far are the centre of the penalty."""

import math

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, InvalidSpec, make_learner, resolve_spec
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.offline.refit_methods import why_not_refit
from dualstream.solvers.protocols.unlearner import why_not_unlearn
from dualstream.solvers.refit.refit import problems_of
from dualstream.solvers.refit.window_problem import Refitting
from tests.solvers import reference

DIM = 4


def learner_of(algorithm="dual_ascent", **more):
    spec = {"algorithm": algorithm, "intercept": "prior", **more}
    return make_learner(resolve_spec({"features": {"kind": "indexed", "dim": DIM}, **spec}))


def rare_rows(n, share, seed=0):
    """Normal columns and a logistic target with about this share of positive labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIM))
    margin = x @ [1.0, -0.5, 0.3, 0.0] + math.log(share / (1.0 - share)) - 0.6
    return Batch.from_dense(x, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-margin)), 1.0, -1.0))


def priors(labels, weights):
    """(n,): the log odds before each row."""
    positive, negative = (
        np.concatenate([[0.0], np.cumsum(weights * (labels == y))[:-1]]) for y in (1.0, -1.0)
    )
    return np.log((positive + 0.5) / (negative + 0.5))


def log_loss(scores, labels):
    return float(np.logaddexp(0.0, -labels * scores).mean())


@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
@pytest.mark.parametrize("algorithm", ["dual_ascent", "sgd", "spg", "rda"])
def test_the_log_loss_of_a_rare_class_is_below_that_of_the_prior(algorithm):
    rows = rare_rows(60_000, 0.001)
    scores = learner_of(algorithm).learn(rows).scores
    prior = log_loss(priors(rows.labels, rows.weights), rows.labels)
    # The l1 penalty of rda leaves little else than the prior.
    assert log_loss(scores, rows.labels) < (1.0 if algorithm == "rda" else 0.99) * prior
    penalised = learner_of(algorithm, intercept=True).learn(rows).scores
    assert log_loss(penalised, rows.labels) > 1.2 * prior
    later = slice(30_000, None)
    expected = float((rows.labels[later] > 0.0).sum())
    assert (1.0 / (1.0 + np.exp(-scores[later]))).sum() == pytest.approx(expected, rel=0.4)


@pytest.mark.parametrize("algorithm", ["dual_ascent", "sgd", "spg"])
def test_every_row_is_scored_and_learned_by_the_formula(algorithm):
    rows = rare_rows(60, 0.3)
    rows.weights[::7], rows.weights[5] = 0.5, 0.0
    rho, mu = 0.01, 0.1
    fields = {"rho": rho} if algorithm == "dual_ascent" else {"rho": rho, "mu": mu}
    learner = learner_of(algorithm, **fields)
    scores = learner.learn(rows).scores
    odds = priors(rows.labels, rows.weights)
    w, delta, expected = np.zeros(DIM + 1), 0.0, []
    for row in range(len(rows)):
        h = np.ones(DIM + 1)
        h[:DIM] = rows.values[DIM * row : DIM * row + DIM]
        y, c, o = rows.labels[row], rows.weights[row], odds[row]
        if algorithm == "dual_ascent":
            expected.append(h @ w / (rho * delta) + o if delta else o)
            delta += c
            room = rho * delta
            w = w + c * reference.step("logistic", h @ w / room + o, c * h @ h / room, y, None) * h
            continue
        expected.append(h @ w + o)
        shrunk = (1.0 - mu * rho) * w
        if algorithm == "sgd":
            tau = y / (1.0 + math.exp(y * (h @ w + o)))
        else:
            tau = reference.step("logistic", h @ shrunk + o, mu * c * h @ h, y, None)
        w = shrunk * (1.0 if c else 0.0) + w * (0.0 if c else 1.0) + mu * c * tau * h
    np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-9)
    at_zero = Batch.from_dense(np.zeros((1, DIM)))
    assert learner.intercept == pytest.approx(learner.predict(at_zero)[0], abs=1e-12)
    assert learner.served_weights()[0].intercept == learner.intercept


@pytest.mark.parametrize("average", [None, {"kappa": 1.0}])
def test_dual_averaging_starts_from_the_prior(average):
    rows = rare_rows(60, 0.3)
    rows.weights[::7], rows.weights[5] = 0.5, 0.0
    lam, gamma = 0.01, 2.0
    learner = learner_of(
        "rda",
        average=average,
        regularizer={"kind": "l1", "lambda": lam},
        schedule={"kind": "sqrt", "gamma": gamma},
        prox="thesis",
    )
    scores = learner.learn(rows).scores
    odds, gradients, expected, t = priors(rows.labels, rows.weights), np.zeros(DIM + 1), [], 0
    w, total = np.zeros(DIM + 1), np.zeros(DIM + 1)
    for row in range(len(rows)):
        h = np.append(rows.values[DIM * row : DIM * row + DIM], 1.0)
        y, c = rows.labels[row], rows.weights[row]
        expected.append((total / max(t, 1) if average else w) @ h + odds[row])
        if c > 0.0:
            t += 1
            gradients -= c * y / (1.0 + math.exp(y * (w @ h + odds[row]))) * h
            cut = t * lam * (np.arange(DIM + 1) < DIM)
            shrunk = np.sign(gradients) * np.maximum(np.abs(gradients) - cut, 0.0)
            w = -shrunk / (2.0 * gamma * math.sqrt(t))
            total += w
    np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-9)
    at_zero = Batch.from_dense(np.zeros((1, DIM)))
    assert learner.intercept == pytest.approx(learner.predict(at_zero)[0], abs=1e-12)


@pytest.mark.parametrize("window", ["infinite", {"kind": "sliding", "length": 40}])
def test_the_certificate_is_that_of_the_penalty_around_the_prior(window):
    rows, rho = rare_rows(100, 0.1), 0.05
    learner = learner_of(window=window, rho=rho, replay={"steps": 1})
    learner.learn(rows)
    kept = rows if window == "infinite" else rows[60:]
    x = np.column_stack([kept.values.reshape(-1, DIM), np.ones(len(kept))])
    duals = learner.state()["ring_duals"][-len(kept) :]
    o = float(np.log(((rows.labels > 0).sum() + 0.5) / ((rows.labels < 0).sum() + 0.5)))
    w = duals @ x / (rho * len(kept))
    margins = kept.labels * (x @ w + o)
    primal = np.logaddexp(0.0, -margins).mean() + rho / 2.0 * w @ w
    b = kept.labels * duals
    conjugates = b * np.log(b) + (1.0 - b) * np.log(1.0 - b) + duals * o
    dual = -conjugates.mean() - rho / 2.0 * w @ w
    result = learner.certificate()
    assert (result.primal, result.dual) == pytest.approx((primal, dual), rel=1e-9)
    assert result.gap == pytest.approx(primal - dual, rel=1e-6)


def test_the_reference_optimum_is_certified():
    learner = learner_of(rho=0.05)
    learner.learn(rare_rows(100, 0.1))
    refitting = Refitting(problems_of(learner), 1e-9, 2000, alone=True)
    refitting.run()
    result = refitting.reference()
    assert result.converged
    assert 0.0 <= refitting.certificate.gap < 1e-8
    assert result.served >= result.lower
    assert result.losses.mean() < result.lower


@pytest.mark.parametrize(
    "spec",
    [
        {"algorithm": "rda_plus"},
        {"algorithm": "dual_ascent", "loss": "hinge"},
        {"algorithm": "dual_ascent", "regularizer": "elastic_net"},
        {"algorithm": "sgd", "task": "regression"},
        {"algorithm": "sgd", "refit": {"every": 1000}},
        {"algorithm": "dual_ascent", "refit": {"every": 1000}},
    ],
)
def test_where_it_is_refused(spec):
    with pytest.raises(InvalidSpec):
        resolve_spec({"intercept": "prior", **spec})


def test_it_is_neither_refitted_nor_unlearned():
    spec = learner_of().spec
    assert "moves with every label" in why_not_refit(spec)
    assert "counts the labels" in why_not_unlearn(spec)


@pytest.mark.parametrize(
    ("algorithm", "name"), [("dual_ascent", "prior"), ("sgd", "positive"), ("rda", "negative")]
)
def test_a_negative_count_of_labels_is_refused(algorithm, name):
    learner = learner_of(algorithm)
    learner.learn(rare_rows(20, 0.3))
    state = learner.state()
    state[name] = state[name] - 100.0
    with pytest.raises(CorruptState):
        learner.restore(state)

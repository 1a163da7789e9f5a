"""ASSET and ASSET* against their definition in plain Python and against exact replays."""

import json
from itertools import product

import numpy as np
import pytest

from dualstream.solvers import Batch, InvalidSpec, make_learner, resolve_spec, solve
from dualstream.solvers.features.fourier import Fourier
from dualstream.solvers.losses.loss_table import make_loss
from tests.solvers.conftest import GOLDEN
from tests.solvers.first_order_reference import loss_from
from tests.solvers.online.asset_support import adult_rows, needs_data, spec_of
from tests.solvers.support import dense, mixed_rows

REPLAY = json.loads((GOLDEN / "svm.json").read_text())["asset_replay"]
REPLAYS = [case for case in REPLAY["cases"] if case["alg"].startswith("asset")]
OPTIMA = [case for case in REPLAY["cases"] if case["alg"].startswith("optimum")]


def largest_slope(loss, reach):
    """A bound of |l'(z)| for |z| <= reach; losses with a kink or a tail never exceed theirs."""
    if loss.name in ("squared", "squared_hinge"):
        return max(abs(loss.slope(z, 1.0)) for z in (-reach, reach))
    return loss.hi


class Reference:
    """The algorithm as it is written, with g as it stands and a plain weighted mean."""

    def __init__(self, dim, lam, step="sqrt", average=None, bound=0.0, constant=False, loss=None):
        self.loss = loss or make_loss("hinge")
        self.radius = np.sqrt(self.loss.value(0.0, 1.0) / lam)
        self.lam, self.step, self.average, self.bound = lam, step, average, bound
        self.constant = constant
        self.g, self.b = np.zeros(dim + constant), 0.0
        self.sums, self.total, self.j = np.zeros(dim + constant + 1), 0.0, 0
        self.norms = []

    def served(self):
        if self.average and self.total > 0:
            return self.sums[:-1] / self.total, self.sums[-1] / self.total
        return self.g, self.b

    def slope(self, z, y):
        if self.loss.name == "hinge":
            return -y * (y * z < 1)
        return self.loss.slope(z, y)

    def learn(self, x, y, c=1.0):
        h = np.append(x, 1.0) if self.constant else x
        g, b = self.served()
        score = g @ h + b
        if c == 0:
            return score
        self.j += 1
        if len(self.norms) < 100:
            most = largest_slope(self.loss, self.radius * np.linalg.norm(h) + self.bound)
            self.norms.append(most**2 * (h @ h + (self.bound > 0)))
        radius = self.radius
        eta = np.hypot(radius, self.bound) / np.sqrt(np.mean(self.norms) * self.j)
        if self.step == "strongly_convex":
            eta = 1 / (self.lam * self.j)
        push = -eta * c * self.slope(self.g @ h + self.b, y)
        self.g = (1 - eta * self.lam) * self.g + push * h
        self.b = np.clip(self.b + push, -self.bound, self.bound)
        self.g *= min(1.0, radius / max(np.linalg.norm(self.g), 1e-300))
        if self.average:
            fade = self.average.get("kappa", 1.0)
            weight = 1.0 if "kappa" in self.average else eta * (self.j >= self.average["from"])
            self.sums = fade * self.sums + weight * np.append(self.g, self.b)
            self.total = fade * self.total + weight
        return score


def test_scores_and_weights_are_those_of_the_definition(subtests):
    for lam, average, (step, bound, intercept) in product(
        [1e-4, 0.3, 5.0],
        [None, {"kappa": 0.9}, {"from": 150}],
        [
            ("sqrt", None, True),
            ("sqrt", None, False),
            ("sqrt", 2.0, True),
            ("strongly_convex", None, False),
            ("strongly_convex", None, True),
        ],
    ):
        with subtests.test(lam=lam, average=average, step=step, bound=bound, intercept=intercept):
            batch = mixed_rows(300)
            batch.weights[10:20], batch.weights[100:120] = 0.0, 2.5
            fields = {"lambda": lam, "average": average, "step": step, "bound": bound}
            learner = make_learner(spec_of(8, **fields, intercept=intercept))
            reference = Reference(8, lam, step, average, bound or 0.0, intercept and not bound)
            rows = zip(dense(batch), batch.labels, batch.weights, strict=True)
            expected = [reference.learn(*row) for row in rows]
            assert learner.learn(batch).scores == pytest.approx(expected, rel=1e-7, abs=1e-7)
            weights, b = reference.served()
            assert learner.weights == pytest.approx(weights[:8], rel=1e-7, abs=1e-7)
            served = weights[8] if reference.constant else b
            assert learner.intercept == pytest.approx(served, rel=1e-7, abs=1e-7)
            assert learner.certificate() is None and learner.probabilities(np.zeros(1)) is None


MARGIN_LOSSES = {
    "logistic": "logistic",
    "squared_hinge": "squared_hinge",
    "smooth_hinge": {"kind": "smooth_hinge", "gamma": 0.5},
    "squared": "squared",
    "absolute": "absolute",
    "epsilon_insensitive": {"kind": "epsilon_insensitive", "epsilon": 0.2},
    "huber": {"kind": "huber", "delta": 0.5},
}


@pytest.mark.parametrize("loss", MARGIN_LOSSES)
@pytest.mark.parametrize(
    ("step", "bound", "intercept"),
    [("sqrt", None, True), ("sqrt", 2.0, True), ("strongly_convex", None, False)],
)
def test_other_losses_of_the_margin_follow_the_definition(loss, step, bound, intercept):
    batch = mixed_rows(300)
    batch.weights[10:20], batch.weights[100:120] = 0.0, 2.5
    fields = {"lambda": 0.05, "step": step, "bound": bound, "average": {"kappa": 0.9}}
    learner = make_learner(spec_of(8, **fields, intercept=intercept, loss=MARGIN_LOSSES[loss]))
    made = loss_from({"loss": MARGIN_LOSSES[loss]})
    reference = Reference(
        8, 0.05, step, fields["average"], bound or 0.0, intercept and not bound, made
    )
    scores = learner.learn(batch).scores
    for row, x in enumerate(dense(batch)):
        y = batch.labels[row]
        # The loss is one of the margin alone.
        assert made.value(0.7 * y, y) == pytest.approx(made.value(-0.7 * y, -y))
        # Large steps on a curved loss amplify rounding errors.
        assert scores[row] == pytest.approx(reference.learn(x, y, batch.weights[row]), abs=1e-5)
    assert (learner.probabilities(np.zeros(1)) is not None) == (loss == "logistic")


@pytest.mark.parametrize("loss", MARGIN_LOSSES)
def test_the_optimum_of_each_loss_is_in_the_ball_and_is_approached(loss):
    batch, lam = mixed_rows(300), 0.1
    made = loss_from({"loss": MARGIN_LOSSES[loss]})
    result = solve(batch, "sdca", loss=MARGIN_LOSSES[loss], rho=lam, tol=1e-8, intercept="none")
    assert lam * result.weights @ result.weights <= made.value(0.0, 1.0)
    learner = make_learner(
        spec_of(8, **{"lambda": lam, "average": {"from": 5000}}, intercept=False)
        | {"loss": MARGIN_LOSSES[loss]}
    )
    for _ in range(50):
        learner.learn(batch)
    z = learner.predict(batch)
    mean = np.mean([made.value(a, b) for a, b in zip(z, batch.labels, strict=True)])
    objective = mean + 0.5 * lam * learner.weights @ learner.weights
    assert result.dual - 1e-12 <= objective <= 1.05 * result.primal


def test_the_square_of_the_norm_does_not_drift():
    batch = mixed_rows(500)
    learner = make_learner(spec_of(8, average=None))
    for _ in range(45):
        learner.learn(batch)
    g = np.append(learner.weights, learner.intercept)
    assert learner.state()["square"] == pytest.approx(g @ g, rel=1e-9)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"task": "regression"}, "/task"),
        ({"lambda": 0}, "/lambda"),
        ({"step": "cubic"}, "/step"),
        ({"bound": 10, "intercept": False}, "/bound"),
        ({"bound": 10, "step": "strongly_convex"}, "/bound"),
        ({"bound": -1}, "/bound"),
        ({"average": {"from": 0}}, "/average/from"),
        ({"loss": "quantile"}, "/loss"),
        ({"loss": {"kind": "epsilon_insensitive", "epsilon": 1}}, "/loss/epsilon"),
        ({"loss": "logistic", "bound": 3, "refit": {}}, "/refit"),
        ({"average": {"from": 5, "kappa": 1}}, "/average/kappa"),
    ],
)
def test_a_field_out_of_range_is_named(fields, field):
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec(spec_of(8) | fields)
    assert refused.value.field == field


def test_defaults_are_written_out():
    resolved = resolve_spec(spec_of(8))
    asset = {"lambda": 1e-5, "step": "sqrt", "average": {"kappa": 0.9995}, "bound": None}
    assert asset.items() <= resolved.items() and "loss" not in resolved
    assert resolve_spec(spec_of(8, loss="hinge")) == resolved
    assert resolve_spec(resolved) == resolved


@pytest.fixture(scope="module")
def a9a():
    return adult_rows("a9a")


def kernel_of(x, n):
    """Of all rows and the first n."""
    squares = (x**2).sum(axis=1)
    return np.exp(-0.05 * (squares[:, None] + squares[None, :n] - 2 * x @ x[:n].T))


def golden_features(name, x):
    """As the golden file says: landmarks by eigenvectors, or NumPy's own draws."""
    if name.startswith("fourier"):
        draw = np.random.default_rng(0)
        nu = draw.standard_normal((123, 128)) * np.sqrt(2 * 0.05)
        beta = draw.uniform(0, 2 * np.pi, 128)
        stage = Fourier(123, 128, 0.05, 0)
        stage.restore({"nu": nu, "beta": beta})
        return dense(stage.peek(x))
    near = kernel_of(dense(x), 64)
    values, vectors = np.linalg.eigh(near[:64])
    return near @ (vectors[:, -32:] / np.sqrt(values[-32:]))


@needs_data
@pytest.mark.data
@pytest.mark.parametrize("case", REPLAYS, ids=lambda case: f"{case['map']}-{case['alg']}")
def test_exact_replays_are_met(case, a9a):
    phi, y = golden_features(case["map"], a9a[:2000]), a9a.labels[:2000]
    kernel = kernel_of(dense(a9a[:300]), 300)
    error = np.linalg.norm(phi[:300] @ phi[:300].T - kernel) / np.linalg.norm(kernel)
    assert error == pytest.approx(case["kernel_rel_fro_err_first300"], rel=1e-6)
    order = np.random.default_rng(0).integers(0, 2000, 6000)
    with_b = case["alg"] == "asset_b"
    learner = make_learner(
        spec_of(
            phi.shape[1],
            **{"lambda": 1e-4, "average": {"from": 3001}},
            step="strongly_convex" if case["alg"] == "asset_star" else "sqrt",
            intercept=with_b,
            bound=10.0 if with_b else None,
        )
    )
    if case["DG2"] is not None:
        square = np.mean((phi[order[:100]] ** 2).sum(axis=1)) + with_b
        assert square == pytest.approx(case["DG2"], rel=1e-9)
        mean = {"norm_sum": np.array(100 * square), "norm_rows": np.array(100)}
        learner.restore(learner.state() | mean)
    rows = Batch.from_dense(phi, y)
    learner.learn(rows.take(order))
    margins = y * (phi @ learner.weights + learner.intercept)
    tolerance = {"rel": REPLAY["tol"], "abs": REPLAY["tol"]}
    norm = np.linalg.norm(learner.weights)
    objective = 0.5e-4 * norm**2 + np.maximum(0, 1 - margins).mean()
    assert norm == pytest.approx(case["norm_gamma_bar"], **tolerance)
    assert learner.intercept == pytest.approx(case["b_bar"], **tolerance)
    assert objective == pytest.approx(case["objective_bar"], **tolerance)
    assert (margins <= 0).mean() == pytest.approx(case["train_err_bar"])


@needs_data
@pytest.mark.data
@pytest.mark.parametrize("case", OPTIMA, ids=lambda case: f"{case['map']}-{case['alg']}")
def test_optima_of_the_replayed_rows_are_met(case, a9a):
    rows = Batch.from_dense(golden_features(case["map"], a9a[:2000]), a9a.labels[:2000])
    result = solve(rows, "mcpa", rho=1e-4, tol=1e-6, intercept=case["alg"].removeprefix("optimum_"))
    assert result.converged and result.dual <= case["objective"] + 1e-8
    assert result.primal == pytest.approx(case["objective"], rel=REPLAY["tol"], abs=1e-8)

"""Reference implementation of online DC programming and the margin learners, as printed.

`eta` already includes the row's weight; the literal exponentials need moderate margins.
"""

import math

import numpy as np

from tests.solvers.specs import DIM


def surrogate(kind, p, w, x, y):
    """f, r - z as functions of a point; None for both if the round takes no step."""
    norm, m = np.linalg.norm(x), y * (w @ x)
    if norm == 0.0:
        return None, None
    if kind == "pil1":
        if m > 0.0:
            return None, None
        tau, nu = (min(p["tau1"], -m), 0.0) if m < 0.0 else (p["tau1"], 1.0)
        return (
            lambda v: max(0.0, nu + min(-m, -y * (v @ x)) / tau),
            lambda v: -y * x / tau if y * (v @ x) <= nu * tau else 0.0 * x,
        )
    if kind == "pil2":
        low = p["tau2"] * (norm if p["relative_tau2"] else 1.0)
        if not -low <= m < p["tau3"] * norm:
            return None, None
        tau = p["tau3"] * norm
        return (
            lambda v: max(0.0, 1.0 + min(low, -y * (v @ x)) / tau),
            lambda v: -y * x / tau if y * (v @ x) < tau else 0.0 * x,
        )
    kappa = p["kappa"] / norm
    if math.tanh(kappa * m) >= 1.0 - p["epsilon"]:
        return None, None
    u = lambda v: kappa * y * (v @ x)  # noqa: E731
    a = math.exp(2.0 * u(w))
    delta = u(w) - math.log((2.0 * a + 1.0) / (a + 1.0) ** 2) / 2.0
    z = -4.0 * kappa * y * x * math.exp(-2.0 * u(w)) * (2.0 * a + 1.0) / (a + 1.0) ** 2

    def slope(v):
        q = math.exp(-2.0 * u(v))
        if u(v) < delta:
            return -4.0 * kappa * y * x * q - z
        return -4.0 * kappa * y * x * q * q * (q + 2.0) / (q + 1.0) ** 2 - z

    return lambda v: max(1.0 - math.tanh(delta), 1.0 - math.tanh(u(v))), slope


def dc_step(kind, p, w, x, y, eta, complete, tol=1e-4, max_inner=5000, radius=math.inf):
    """w_{t+1}, and the number of iterations."""
    _, slope = surrogate(kind, p, w, x, y)
    if slope is None:
        return w, 0

    def project(v):
        return v * min(1.0, radius / np.linalg.norm(v)) if np.any(v) else v

    if not complete:
        return project(w - eta * slope(w)), 0
    inner, done = 0, False
    while not done and inner < max_inner:
        new = project(w - eta * slope(w))
        done = np.linalg.norm(new - w) <= tol * (np.linalg.norm(w) + 1.0)
        w, inner = new, inner + 1
    return w, inner


def margin_step(spec, w, x, y, c, k):
    """w_{t+1} and k of ALMA, for a row of weight c > 0."""
    algorithm, m, norm, share = spec["algorithm"], y * (w @ x), np.linalg.norm(x), min(1.0, c)
    if norm == 0.0:
        return w, k
    if algorithm == "perceptron":
        return (w + c * y * x if m <= 0.0 else w), k
    if algorithm == "passive_aggressive":
        loss, cost = max(0.0, 1.0 - m), c * spec.get("C", math.inf)
        step = {
            "pa": share * loss / norm**2,
            "pa1": min(cost, loss / norm**2),
            "pa2": loss / (norm**2 + 0.5 / cost),
        }[spec["variant"]]
        return w + step * y * x, k
    if algorithm == "romma":
        if m > 0.0:
            return w, k
        ww = w @ w
        if ww == 0.0:
            return share * y * x, k
        d = norm**2 * ww - m**2
        new = (norm**2 * ww - m) / d * w + ww * (y - y * m) / d * x
        return w + share * (new - w), k
    alpha, d = spec["alpha"], norm if spec["normalize"] else 1.0
    if (1.0 - alpha) / alpha * math.sqrt((spec["p"] - 1.0) / k) <= m / d:
        return w, k
    v = w + c * spec["C"] / math.sqrt((spec["p"] - 1.0) * k) * y * x / d
    return v / max(1.0, np.linalg.norm(v)), k + share


def dense(batch, intercept):
    rows = np.zeros((len(batch), DIM + 1))
    for i in range(len(batch)):
        entries = slice(batch.indptr[i], batch.indptr[i + 1])
        rows[i, batch.indices[entries]] = batch.values[entries]
    rows[:, -1] = intercept
    return rows

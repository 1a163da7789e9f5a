"""Slow NumPy versions of online/first_order.py and online/truncated_gradient.py."""

import numpy as np

from dualstream.solvers import resolve_spec
from dualstream.solvers.losses.loss_table import make_loss


def loss_from(spec):
    """The loss of a specification as given."""
    loss = spec.get("loss", "logistic")
    if isinstance(loss, str):
        return make_loss(loss)
    return make_loss(loss["kind"], next(v for name, v in loss.items() if name != "kind"))


def dense(batch, intercept):
    """(n, dim + 1): the rows, and 1 or 0 behind them."""
    x = np.zeros((len(batch.labels), batch.dim + 1))
    for i in range(len(x)):
        span = slice(batch.indptr[i], batch.indptr[i + 1])
        x[i, batch.indices[span]] = batch.values[span]
    x[:, -1] = intercept
    return x


def soft(x, by):
    return np.sign(x) * np.maximum(np.abs(x) - by, 0.0)


def gradient_steps(spec, batch, proximal):
    """All iterates of (32) or (33) of Ying, Yuan, Sayed (2016), and their averages by (27)."""
    loss, mu, rho = loss_from(spec), spec["mu"], spec["rho"]
    kappa = (spec.get("average") or {"kappa": 0.0})["kappa"]
    x = dense(batch, spec.get("intercept", True))
    w, mean, share = np.zeros(x.shape[1]), np.zeros(x.shape[1]), 0.0
    for h, y, c in zip(x, batch.labels, batch.weights, strict=True):
        if c == 0.0:
            continue
        small = (1.0 - mu * rho) * w
        if proximal:
            tau = loss.dual_step(h @ small, mu * c * (h @ h), y)
        else:
            tau = -loss.slope(h @ w, y)
        w = small + mu * c * tau * h
        share = kappa * share + 1.0
        mean = mean + (w - mean) / share
    return mean


def ogd(spec, batch):
    """The weights after all rows."""
    x = dense(batch, spec.get("intercept", True))
    w, t = np.zeros(x.shape[1]), 0
    for h, y, c in zip(x, batch.labels, batch.weights, strict=True):
        if c == 0.0:
            continue
        t += 1
        if y * (h @ w) < 1.0:
            w = w + c * spec["C"] / np.sqrt(t) * y * h
    return w


def truncated(spec, batch):
    """The weights after all rows, every one of them cut every time: (2.7) of the thesis."""
    return truncated_iterates(spec, batch)[-1]


def truncated_iterates(spec, batch):
    """The weights after each row, (n, dim + 1): (2.7), (2.6) and the SGD of section 2.6.2."""
    loss, period = loss_from(spec), resolve_spec(spec).get("period", 1)
    theta = np.inf if spec.get("theta") is None else spec["theta"]
    x = dense(batch, spec.get("intercept", True))
    w, t, results = np.zeros(x.shape[1]), 0, []
    for h, y, c in zip(x, batch.labels, batch.weights, strict=True):
        if c > 0.0:
            t += 1
            alpha = np.sqrt(2.0 / t) / spec["gamma"]
            step = alpha * c * loss.slope(h @ w, y) * h
            if spec["algorithm"] == "sgd_l1":
                w = w - step - alpha * spec["lambda"] * np.sign(w)
            else:
                w = w - step
                if t % period == 0:
                    cut = alpha * spec["lambda"] * period
                    w = np.where(np.abs(w) <= max(theta, cut), soft(w, cut), w)
                w = w / (1.0 + alpha * spec.get("sigma", 0.0))
        results.append(w)
    return np.array(results)


def averages(iterates, weights, kappa):
    """The average after each row by (27) of Ying, Yuan, Sayed (2016); rows of weight 0 count not.

    iterates (n, m), weights (n,)
    """
    mean, share, results = np.zeros(iterates.shape[1]), 0.0, []
    for w, c in zip(iterates, weights, strict=True):
        if c > 0.0:
            share = kappa * share + 1.0
            mean = mean + (w - mean) / share
        results.append(mean)
    return np.array(results)

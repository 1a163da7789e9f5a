"""Scores the json export with NumPy and scikit-learn, by the formulas of docs/guides/export.md.

Everything is made of what stands in the file; rows are (n, dim), a column for each index from 1.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist
from scipy.special import expit, logit
from sklearn.kernel_approximation import RBFSampler
from sklearn.preprocessing import normalize

Floats = NDArray[np.float64]


def scores(form: dict[str, Any], x: Floats) -> Floats:
    """(n, scores) of rows (n, dim)."""
    for stage in form["stages"]:
        x = STAGES[stage["kind"]](stage, x)
    return np.column_stack([SCORES[score["kind"]](score, x) for score in form["scores"]])


def _spread(stage: dict[str, Any], name: str, dim: int) -> Floats:
    """The numbers of the file, each in its column; 0 where there is none."""
    result = np.zeros(dim)
    result[np.array(stage["indices"], dtype=int) - 1] = stage[name]
    return result


def _balanced(stage: dict[str, Any], x: Floats) -> Floats:
    t, power, is_there = stage["rows"] + 1, stage["power"], x != 0.0
    c = _spread(stage, "counts", x.shape[1]) + is_there
    if "low" in stage:
        low, high = (_spread(stage, name, x.shape[1]) for name in ("low", "high"))
        x = np.where(is_there & (c > 1), np.clip(x, low, high), x)
    with np.errstate(divide="ignore", invalid="ignore"):
        rare = np.where(is_there, t / c, 0.0) ** power
        if not stage["moments"]:
            return x * rare
        old = _spread(stage, "means", x.shape[1])
        mean = np.where(is_there, old + (x - old) / c, old)
        m = _spread(stage, "deviations", x.shape[1]) + is_there * (x - old) * (x - mean)
        was_dense = _spread(stage, "dense", x.shape[1]) != 0.0
        is_dense = (was_dense & (4 * c >= t)) | (is_there & (t >= 21) & (2 * c >= t))
        size = m / t + c / t * mean**2
        v = m / t + c / t * (1 - c / t) * mean**2
        dense = np.where((v > 1e-30 * size) & (v >= 1e-290), (x - mean * c / t) / np.sqrt(v), 0.0)
        square = m / c + mean**2
        sparse = np.where(is_there & (square >= 1e-290), x / np.sqrt(square) * rare, 0.0)
    return np.where(is_dense, dense, sparse)


def _fourier(stage: dict[str, Any], x: Floats) -> Floats:
    sampler = RBFSampler(n_components=len(stage["beta"])).fit(x[:1])
    sampler.random_weights_ = np.array(stage["nu"])
    sampler.random_offset_ = np.array(stage["beta"])
    return sampler.transform(x)


def _nystroem(stage: dict[str, Any], x: Floats) -> Floats:
    lines = stage["factor"]
    landmarks, factor = np.zeros((len(lines), x.shape[1])), np.zeros((len(lines), len(lines)))
    for k, (landmark, line) in enumerate(zip(stage["landmarks"], lines, strict=False)):
        landmarks[k, np.array(landmark["indices"], dtype=int) - 1] = landmark["values"]
        factor[k, : len(line)] = line
    near = np.exp(-stage["gamma"] * cdist(x, landmarks, "sqeuclidean"))
    return solve_triangular(factor, near.T, lower=True).T


def _running_norm(stage: dict[str, Any], x: Floats) -> Floats:
    square = (stage["squares"] + np.sum(x * x, axis=1)) / (stage["rows"] + 1)
    return x / np.sqrt(np.where(square > 0.0, square, 1.0))[:, None]


def _linear(score: dict[str, Any], h: Floats) -> Floats:
    columns = np.array(score["indices"], dtype=int) - 1
    return score["intercept"] + h[:, columns] @ np.array(score["weights"])


def _own(part: dict[str, Any], h: Floats) -> Floats:
    return np.zeros(len(h)) if part["form"] is None else scores(part["form"], h)[:, 0]


def _class_mixture(score: dict[str, Any], h: Floats) -> Floats:
    p, most = np.zeros(len(h)), score["largest_log_odds"]
    for part in score["parts"]:
        m = np.clip(_own(part, h), -score["largest_score"], score["largest_score"])
        p += part["share"] * expit(np.clip(part["a"] * m + part["b"], -most, most))
    return logit(p)


def _number_mixture(score: dict[str, Any], h: Floats) -> Floats:
    total = np.full(len(h), score["mean"])
    for part in score["parts"]:
        mine = np.clip(_own(part, h) + part["b"], score["low"], score["high"])
        total += part["share"] * (mine - score["mean"])
    return total


STAGES = {
    "balanced": _balanced,
    "fourier": _fourier,
    "nystroem": _nystroem,
    "row_norm": lambda _, x: normalize(x),
    "running_norm": _running_norm,
}
SCORES = {"linear": _linear, "class_mixture": _class_mixture, "number_mixture": _number_mixture}

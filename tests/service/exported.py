"""Models for the tests of exports, and the json form scored by plain Python as it is described."""

import math

import numpy as np

from service.export import FORMATS, Source, member_source, whole_source
from solvers import Batch, class_places, make_learner

DIM = 12
INDEXED = {"kind": "indexed", "dim": DIM}
BALANCED = {"kind": "balanced", "power": 0.25, "moments": True}
COUNTS = {"kind": "balanced", "power": 0.25, "moments": False}


def rows(n: int, seed: int, dim: int = DIM) -> np.ndarray:
    """Columns that are always there, that seldom are, one of a large mean, and one constant."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, dim)) * (rng.random((n, dim)) < np.linspace(1.0, 0.05, dim))
    x[:, 1] += 5.0
    x[:, 2] = 1.0
    return x


def batch_of(x: np.ndarray, labels=None, classes=()) -> Batch:
    """Rows as a learner takes them."""
    row, column = np.nonzero(x)
    indptr = np.searchsorted(row, np.arange(len(x) + 1))
    labels = np.zeros(len(x)) if labels is None else labels
    weights = np.ones(len(x))
    columns = (indptr.astype(np.int64), column.astype(np.int32), x[row, column])
    return Batch(*columns, labels, weights, x.shape[1], classes)


def trained(spec: dict, n: int = 400, dim: int = DIM):
    """A learner of this specification that has learned n rows."""
    learner = make_learner(spec)
    x = rows(n, 1, dim)
    noise = 0.3 * np.random.default_rng(2).standard_normal(n)
    target = x[:, 0] - 0.3 * x[:, 1] + x[:, 3] + noise + 1.5
    if spec.get("task") == "multiclass":
        names = [f'"{name}"' for name in np.digitize(target, [-0.5, 0.5])]
        labels, classes = class_places(names)
        learner.learn(batch_of(x, labels, classes))
    elif spec.get("task") == "regression":
        learner.learn(batch_of(x, 10.0 + 3.0 * target))
    else:
        learner.learn(batch_of(x, np.where(target > 0.0, 1.0, -1.0)))
    return learner


def no_name(_: int) -> None:
    return None


def source_of(learner, member: str | None = None, name_of=no_name) -> Source:
    """What is exported of a learner."""
    if member is None:
        return whole_source("m", 7, '"7-00000000"', learner, name_of)
    return member_source("m", 7, '"7-00000000"', learner, member, name_of)


def exported(format: str, learner, member: str | None = None, name_of=no_name) -> bytes:
    return FORMATS[format].write(source_of(learner, member, name_of))


def scores_by_hand(form: dict, x: dict[int, float]) -> list[float]:
    """As docs/EXPORT.md says it: x and h are index -> value, from 1, without zeros."""
    for stage in form["stages"]:
        x = {index: h for index, h in STAGES[stage["kind"]](stage, x).items() if h != 0.0}
    return [SCORES[score["kind"]](score, x) for score in form["scores"]]


def _balanced(stage: dict, x: dict[int, float]) -> dict[int, float]:
    t, power, h = stage["rows"] + 1, stage["power"], {}
    known = {index: place for place, index in enumerate(stage["indices"])}
    for index in {*x, *known}:
        value, place = x.get(index, 0.0), known.get(index)
        count = 0.0 if place is None else stage["counts"][place]
        c = count + (1 if value else 0)
        if not stage["moments"]:
            h[index] = value * (t / c) ** power
            continue
        mean, m, was_dense = 0.0, 0.0, False
        if place is not None:
            mean, m = stage["means"][place], stage["deviations"][place]
            was_dense = stage["dense"][place]
        if value:
            step = value - mean
            mean += step / c
            m += step * (value - mean)
        is_dense = was_dense and 4 * c >= t
        if value:
            is_dense = is_dense or (t >= 21 and 2 * c >= t)
        if is_dense:
            of_mean = c / t * mean * mean
            variance = m / t + (1 - c / t) * of_mean
            if variance > 1e-30 * (m / t + of_mean) and variance >= 1e-290:
                h[index] = (value - c / t * mean) / math.sqrt(variance)
        elif value and m / c + mean * mean >= 1e-290:
            h[index] = value / math.sqrt(m / c + mean * mean) * (t / c) ** power
    return h


def _fourier(stage: dict, x: dict[int, float]) -> dict[int, float]:
    d = len(stage["beta"])
    sums = [
        beta + sum(value * stage["nu"][index - 1][k] for index, value in x.items())
        for k, beta in enumerate(stage["beta"])
    ]
    return {k + 1: math.sqrt(2 / d) * math.cos(s) for k, s in enumerate(sums)}


def _nystroem(stage: dict, x: dict[int, float]) -> dict[int, float]:
    h: list[float] = []
    for landmark, line in zip(stage["landmarks"], stage["factor"], strict=False):
        z = dict(zip(landmark["indices"], landmark["values"], strict=True))
        square = sum((x.get(i, 0.0) - z.get(i, 0.0)) ** 2 for i in {*x, *z})
        near = math.exp(-stage["gamma"] * square)
        h.append((near - sum(a * b for a, b in zip(line, h, strict=False))) / line[-1])
    return dict(enumerate(h, 1))


def _normed(stage: dict, x: dict[int, float]) -> dict[int, float]:
    square = sum(value * value for value in x.values())
    if stage["kind"] == "running_norm":
        square = (stage["squares"] + square) / (stage["rows"] + 1)
    return {index: value / math.sqrt(square) for index, value in x.items()} if square else x


def _linear(score: dict, x: dict[int, float]) -> float:
    weights = zip(score["indices"], score["weights"], strict=True)
    return score["intercept"] + sum(weight * x.get(index, 0.0) for index, weight in weights)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _raw(part: dict, x: dict[int, float]) -> float:
    return 0.0 if part["form"] is None else scores_by_hand(part["form"], x)[0]


def _class_mixture(score: dict, x: dict[int, float]) -> float:
    p = 0.0
    for part in score["parts"]:
        m = _clip(_raw(part, x), -score["largest_score"], score["largest_score"])
        most = score["largest_log_odds"]
        p += part["share"] / (1 + math.exp(-_clip(part["a"] * m + part["b"], -most, most)))
    return math.log(p / (1 - p))


def _number_mixture(score: dict, x: dict[int, float]) -> float:
    total = score["mean"]
    for part in score["parts"]:
        own = _clip(_raw(part, x) + part["b"], score["low"], score["high"])
        total += part["share"] * (own - score["mean"])
    return total


STAGES = {
    "balanced": _balanced,
    "fourier": _fourier,
    "nystroem": _nystroem,
    "row_norm": _normed,
    "running_norm": _normed,
}
SCORES = {
    "linear": _linear,
    "class_mixture": _class_mixture,
    "number_mixture": _number_mixture,
}

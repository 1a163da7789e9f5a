"""Specifications with intervals, and rows for their models."""

from typing import Any

import numpy as np

from tests.service.conftest import SPEC

NUMBER = SPEC | {"task": "regression", "loss": "squared", "intervals": {"coverage": 0.8}}
BINARY = SPEC | {"loss": "logistic", "intervals": {"coverage": 0.95}}
CLASSES = BINARY | {"task": "multiclass"}
TWO = {"intervals": {"coverage": [0.5, 0.9]}}
PORTFOLIO = {"features": SPEC["features"], "task": "regression", "intervals": {"coverage": 0.8}}


def rows(n: int, seed: int = 0) -> tuple[list[list[float]], np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(size=(n, 5)), 3)
    return x.tolist(), x[:, 0] + 0.3 * rng.normal(size=n)


def labels_of(task: str, numbers: np.ndarray) -> list[Any]:
    if task == "regression":
        return np.round(numbers, 3).tolist()
    if task == "binary":
        return (numbers > 0).astype(int).tolist()
    return np.array(["low", "mid", "high"])[1 * (numbers > -0.5) + 1 * (numbers > 0.5)].tolist()

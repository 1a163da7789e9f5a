"""Comparison of our learners with the others, on each stream and over several."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from load_tests.regression import ours
from load_tests.regression.data import Floats, as_batch
from load_tests.regression.peers import NAMES, Kept
from load_tests.regression.runs import Errors, load

LAST = "last y"
BASELINES = ("running mean", LAST)
OTHERS = (*NAMES, *BASELINES)
CLOSE = 1.02
WARM_UP = 50
"""Rows learned before the clock starts: the first call loads kernels."""


@dataclass(frozen=True)
class Standing:
    """One stream."""

    name: str
    rows: int
    columns: int
    ten: Errors
    full: Errors
    us: tuple[float, float]
    """Microseconds of CPU per row of `ten` and `full`, to predict and learn it."""
    shares: dict[str, float]
    alone: dict[str, Errors]
    without: dict[str, Errors]
    variants: dict[str, Errors]
    others: dict[str, Errors]
    """Peers and baselines, as far as they were run."""

    def best(self, rmse: bool = False) -> str:
        """The best of the others, picked with hindsight."""
        return least(self.others, rmse)

    def best_alone(self, rmse: bool = False) -> str:
        """Our best member alone, picked with hindsight."""
        return least(self.alone, rmse)

    def ours(self) -> dict[str, Errors]:
        """The two presets."""
        return {"ten": self.ten, "full": self.full}

    def ratios(self, preset: str = "ten") -> tuple[float, float]:
        """Errors of a preset divided by the best of the others; each error has its own best."""
        mine = self.ours()[preset]
        return (
            mine.mae / self.others[self.best()].mae,
            mine.rmse / self.others[self.best(rmse=True)].rmse,
        )


def least(errors: dict[str, Errors], rmse: bool) -> str:
    """The learner with the smallest mean absolute or root mean square error."""
    return min(errors, key=lambda name: errors[name].rmse if rmse else errors[name].mae)


def standing(name: str, peers: Kept) -> Standing:
    """Run our learners on a stream, and add the peers' results."""
    batch = as_batch(load(name))
    for spec in (ours.CHOSEN, ours.FULL):
        ours.learned(spec, batch[:WARM_UP])
    began = time.process_time()
    ten, learner = ours.learned(ours.CHOSEN, batch)
    between = time.process_time()
    full, _ = ours.learned(ours.FULL, batch)
    seconds = (between - began, time.process_time() - between)
    runs = {
        kind: {one: ours.learned(spec, batch)[0] for one, spec in specs.items()}
        for kind, specs in (
            ("alone", ours.ALONE),
            ("without", ours.WITHOUT),
            ("variants", ours.OTHERS),
        )
    }
    others = {peer: errors for peer, errors in peers[name].items() if errors is not None}
    return Standing(
        name=name,
        rows=len(batch),
        columns=batch.dim,
        ten=ten,
        full=full,
        us=(1e6 * seconds[0] / len(batch), 1e6 * seconds[1] / len(batch)),
        shares=ours.shares(learner),
        others=others | baselines(batch.labels),
        **runs,
    )


def baselines(y: Floats) -> dict[str, Errors]:
    """The mean of the targets so far, and the last target."""
    before = np.concatenate([[0.0], np.cumsum(y)[:-1] / np.arange(1, len(y))])
    last = np.concatenate([[0.0], y[:-1]])
    return dict(zip(BASELINES, (Errors.of(before, y), Errors.of(last, y)), strict=True))


def mean_ratio(
    standings: Sequence[Standing], pair: Callable[[Standing], tuple[float, float]]
) -> tuple[float, float]:
    """Geometric means of two ratios over the streams."""
    logs = np.log([pair(one) for one in standings]).mean(axis=0)
    return math.exp(logs[0]), math.exp(logs[1])

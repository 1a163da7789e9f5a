"""Our learners, untuned: one specification each for all streams."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dualstream.solvers import Batch, make_learner, resolve_spec
from load_tests.streams.cases import Case, block_of
from load_tests.streams.prequential import Peer, scores
from load_tests.streams.runs import Run

OURS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "single": {
            "algorithm": "dual_ascent",
            "loss": "logistic",
            "strength": 30,
            "window": "infinite",
            "scaling": "balanced",
            "average": None,
        },
        "eight": {"algorithm": "portfolio", "members": "eight"},
        "twelve": {"algorithm": "portfolio", "members": "twelve"},
        "papers": {"algorithm": "portfolio", "members": "papers"},
    }
)


class Ours(Peer):
    """A learner of `solvers`, one row at a time."""

    def __init__(self, spec: Mapping[str, Any], batch: Batch) -> None:
        self._learner = learner(spec, batch)
        self._batch = batch

    def score(self, row: int) -> float:
        return float(self._learner.predict(self._batch[row : row + 1])[0])

    def learn(self, row: int) -> None:
        self._learner.learn(self._batch[row : row + 1])


def learner(spec: Mapping[str, Any], batch: Batch) -> Any:
    return make_learner(resolve_spec({**spec, "features": {"kind": "indexed", "dim": batch.dim}}))


def our_run(case: Case, batch: Batch, spec: Mapping[str, Any]) -> Run:
    """Run in one call if no label is late: a batch is learned row by row."""
    if case.delay:
        predictions = scores(Ours(spec, batch), len(batch), case.delay)
    else:
        predictions = learner(spec, batch).learn(batch).scores
    return Run.of(predictions, batch.labels, block_of(case, len(batch)))

"""All learners on one stream, ours and the peers'."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from load_tests.streams.cases import Case, last_label
from load_tests.streams.ours import OURS, our_run
from load_tests.streams.peer_figures import Runs
from load_tests.streams.runs import Run

NEAR = 0.5
"""Points of mistakes that count as no difference."""

Figure = tuple[float, float]
"""Percent of mistakes, mean log-loss."""


@dataclass(frozen=True)
class Standing:
    name: str
    rows: int
    last_label: float
    ours: Mapping[str, Run]
    peers: Mapping[str, Run]
    reference_only: Mapping[str, Figure]
    """Peers that the reference has and that are not run here."""

    def figures(self) -> dict[str, Figure]:
        runs = {name: (run.mistakes, run.log_loss) for name, run in self.runs().items()}
        return runs | dict(self.reference_only)

    def runs(self) -> dict[str, Run]:
        return {**self.ours, **self.peers}

    def ranked(self) -> list[str]:
        """The peers, best first."""
        figures = self.figures()
        return sorted((name for name in figures if name not in OURS), key=lambda p: figures[p])

    @property
    def best(self) -> str:
        """The peer with the fewest mistakes."""
        return self.ranked()[0]

    @property
    def best_error(self) -> float:
        """Standard error of the best peer's percentage, assuming independent rows."""
        share = self.figures()[self.best][0] / 100.0
        return 100.0 * float(np.sqrt(share * (1.0 - share) / self.rows))

    def behind(self, name: str) -> float:
        """Points of mistakes more than the best peer; NaN without a figure."""
        figures = self.figures()
        return figures.get(name, (np.nan, np.nan))[0] - figures[self.best][0]


def standing(case: Case, peers: Runs, reference: Mapping[str, Any]) -> Standing:
    """Run our learners; add the peers' runs and the figures of the reference."""
    batch = case.read()
    theirs = reference.get(case.name, {}).get("peers_default", {})
    return Standing(
        case.name,
        len(batch),
        last_label(batch),
        {name: our_run(case, batch, spec) for name, spec in OURS.items()},
        peers[case.name],
        {peer: tuple(pair) for peer, pair in theirs.items() if peer not in peers[case.name]},
    )


@dataclass(frozen=True)
class Score:
    """One learner on several streams."""

    near: int
    """Streams on which it is within NEAR of the best peer, or better."""
    first: int
    """Streams on which no peer makes fewer mistakes."""
    mean_behind: float
    worst_behind: float
    log_loss: float
    streams: int


def score(standings: Iterable[Standing], name: str) -> Score:
    """Summary over the streams on which this learner has a figure."""
    entries = [s for s in standings if name in s.figures()]
    behind = np.array([s.behind(name) for s in entries])
    return Score(
        int((behind <= NEAR + 1e-9).sum()),
        int((behind <= 1e-9).sum()),
        float(behind.mean()),
        float(behind.max()),
        float(np.mean([s.figures()[name][1] for s in entries])),
        len(entries),
    )


def best_log_loss(standings: Iterable[Standing]) -> float:
    """Mean over the streams of the smallest log-loss of any peer."""
    return float(np.mean([min(s.figures()[p][1] for p in s.ranked()) for s in standings]))

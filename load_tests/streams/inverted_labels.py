"""Inverted labels: how soon each learner recovers after labels invert half-way."""

from collections.abc import Mapping

import numpy as np

from load_tests.paper_tables.report import plt, save, table
from load_tests.streams.cases import FEW, TURN_BLOCK, TURNED, turn
from load_tests.streams.ours import OURS, our_run
from load_tests.streams.peer_figures import Runs
from load_tests.streams.plots import style
from load_tests.streams.runs import Run

WINDOWS = {"a9a": 500, "w1a": 200}
POINTS = 2.0

ABOUT = f"""\
The labels of the second half are inverted. *Before* is the percentage of errors in the last
window of rows before the turn (500 rows of a9a, 200 of w1a, which is shuffled). *Back* is the
number of rows after the turn until the errors in the last window are at most {POINTS:.0f} points
more than before; at least one window. *Errors since* counts all rows since the turn.
"""


def section(peers: Runs) -> str:
    results = {name: runs(name, peers) for name in TURNED}
    lines = [
        (stream, f"**{name}**" if name in OURS else name, *figures(stream, run))
        for stream, learners in results.items()
        for name, run in learners.items()
    ]
    heads = (
        "stream",
        "learner",
        "before",
        "first window after",
        "back",
        "last window",
        "errors since",
    )
    return "\n".join((ABOUT, table(heads, lines), plot(results)))


def runs(name: str, peers: Runs) -> dict[str, Run]:
    case = TURNED[name]
    batch = case.read()
    ours = {mine: our_run(case, batch, spec) for mine, spec in OURS.items()}
    return ours | {peer: peers[case.name][peer] for peer in FEW}


def figures(stream: str, run: Run) -> list[str]:
    window = WINDOWS[stream] // TURN_BLOCK
    _, errors = run.rolling(window)
    at = turn(run.rows) // TURN_BLOCK
    before, after = errors[at - 1], errors[at + window - 1 :]
    back = np.flatnonzero(after <= before + POINTS)
    since = 100.0 * sum(run.counts[at:]) / (run.rows - turn(run.rows))
    rows = f"{(back[0] + window) * TURN_BLOCK:,}" if len(back) else "not again"
    return [f"{before:.1f}", f"{after[0]:.1f}", rows, f"{after[-1]:.1f}", f"{since:.1f}"]


def plot(results: Mapping[str, Mapping[str, Run]]) -> str:
    figure, panels = plt.subplots(1, len(results), figsize=(11.0, 4.2))
    for axes, (stream, learners) in zip(panels, results.items(), strict=True):
        for name, run in learners.items():
            rows, errors = run.rolling(WINDOWS[stream] // TURN_BLOCK)
            axes.plot(rows - turn(run.rows), errors, label=name, **style(name))
        axes.axvline(0.0, color="0.6", lw=0.8)
        half = next(iter(learners.values())).rows // 2
        axes.set_xlim(-WINDOWS[stream], min(half, 12 * WINDOWS[stream]))
        axes.set_ylim(0, None)
        axes.set_title(f"{stream}: % of mistakes in the last {WINDOWS[stream]} rows", fontsize=10)
        axes.set_xlabel("rows since the turn")
    panels[0].legend(fontsize=8)
    return save(figure, "turned", "streams")

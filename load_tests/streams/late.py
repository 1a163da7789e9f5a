"""Late labels: the cost of a delay."""

from collections.abc import Callable

from load_tests.markdown import table
from load_tests.streams.cases import (
    DELAYS,
    FEW,
    LATE,
    LATEST,
    NEWEST_LABEL,
    block_of,
    newest_labels,
)
from load_tests.streams.ours import OURS, our_run
from load_tests.streams.peer_figures import Runs
from load_tests.streams.runs import Run

ABOUT = """\
A row is scored when it arrives, and learned after the row that arrives *late* rows later is
scored. The first score counts; the last rows are never learned. Percentage of errors, in brackets
the cost of the delay in points, and log-loss; the fewest errors are in bold. Where neighbouring
labels mostly agree, as in elec2, the learners that follow them fastest lose most. The *last known
label* is that of the newest row learned.
"""
FROM_THE_LATEST = f"""\
The first rows meet an untrained learner, whose score 0 counts as positive. Percentage of errors
from row {LATEST + 1:,} on, without that effect:
"""

Results = dict[tuple[str, int], dict[str, Run]]


def section(peers: Runs) -> str:
    results = {key: runs(key, peers) for key in LATE}
    whole = of_all(results, lambda run: run.mistakes, show_loss=True)
    return "\n".join((ABOUT, whole, FROM_THE_LATEST, of_all(results, later, show_loss=False)))


def runs(key: tuple[str, int], peers: Runs) -> dict[str, Run]:
    case = LATE[key]
    batch = case.read()
    ours = {name: our_run(case, batch, spec) for name, spec in OURS.items()}
    last = Run.of(newest_labels(batch.labels, case.delay), batch.labels, block_of(case, len(batch)))
    return ours | {peer: peers[case.name][peer] for peer in FEW} | {NEWEST_LABEL: last}


def later(run: Run) -> float:
    """Percent of mistakes without the first block, which is as long as the longest delay."""
    return 100.0 * sum(run.counts[1:]) / (run.rows - LATEST)


def of_all(results: Results, mistakes: Callable[[Run], float], show_loss: bool) -> str:
    lines = []
    for (name, delay), learners in results.items():
        least = min(mistakes(run) for run in learners.values())
        cells = []
        for learner, run in learners.items():
            share = f"**{least:.2f}**" if mistakes(run) == least else f"{mistakes(run):.2f}"
            cost = mistakes(run) - mistakes(results[name, DELAYS[0]][learner])
            points = f" ({cost:+.2f})" if delay else ""
            has_loss = show_loss and learner != NEWEST_LABEL
            loss = f", {run.log_loss:.3f}" if has_loss else ""
            cells.append(f"{share}{points}{loss}")
        lines.append((name, f"{delay:,}", *cells))
    return table(("stream", "late", *(f"**{name}**" for name in OURS), *FEW, NEWEST_LABEL), lines)

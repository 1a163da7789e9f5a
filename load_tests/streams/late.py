"""Labels that come late: what it costs."""

from collections.abc import Callable

from load_tests.markdown import table
from load_tests.streams.cases import DELAYS, FEW, LATE, LATEST
from load_tests.streams.measured import Runs
from load_tests.streams.ours import OURS, our_run
from load_tests.streams.runs import Run

ABOUT = """\
A row is scored when it comes, and learned once the row that comes *late* rows after it has been
scored; the score from when it came counts, and the last rows are never learned. Percent of mistakes
over all rows, in brackets what the delay costs in points, and log-loss; the fewest mistakes are in
bold. Where neighbouring labels mostly agree, as in elec2, whoever follows them fastest has the most
to lose.
"""
FROM_THE_LATEST = f"""\
The first rows, as many as labels are late, meet a learner that has learned nothing: its 0 counts
as positive. Percent of mistakes from row {LATEST + 1:,} on, which leaves that out:
"""

Found = dict[tuple[str, int], dict[str, Run]]


def section(peers: Runs) -> str:
    found = {key: runs(key, peers) for key in LATE}
    whole = of_all(found, lambda run: run.mistakes, show_loss=True)
    return "\n".join((ABOUT, whole, FROM_THE_LATEST, of_all(found, later, show_loss=False)))


def runs(key: tuple[str, int], peers: Runs) -> dict[str, Run]:
    case = LATE[key]
    batch = case.read()
    ours = {name: our_run(case, batch, spec) for name, spec in OURS.items()}
    return ours | {peer: peers[case.name][peer] for peer in FEW}


def later(run: Run) -> float:
    """Percent of mistakes without the first block, which is as long as the longest delay."""
    return 100.0 * sum(run.counts[1:]) / (run.rows - LATEST)


def of_all(found: Found, mistakes: Callable[[Run], float], show_loss: bool) -> str:
    lines = []
    for (name, delay), learners in found.items():
        least = min(mistakes(run) for run in learners.values())
        cells = []
        for learner, run in learners.items():
            share = f"**{least:.2f}**" if mistakes(run) == least else f"{mistakes(run):.2f}"
            cost = mistakes(run) - mistakes(found[name, DELAYS[0]][learner])
            points = f" ({cost:+.2f})" if delay else ""
            loss = f", {run.log_loss:.3f}" if show_loss else ""
            cells.append(f"{share}{points}{loss}")
        lines.append((name, f"{delay:,}", *cells))
    return table(("stream", "late", *(f"**{name}**" for name in OURS), *FEW), lines)

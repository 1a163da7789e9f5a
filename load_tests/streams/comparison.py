"""Tables that compare `eight`, `fast` and `full` with the peers of comparison.json."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dualstream.solvers import Batch
from load_tests.markdown import table
from load_tests.streams.cases import turn
from load_tests.streams.compared import FAMILIES, FEW, FLIPPED, STREAMS, THINNED, all_streams
from load_tests.streams.data import digest
from load_tests.streams.figures import BLOCK, Figures
from load_tests.streams.ours import learner
from load_tests.streams.peer_comparison import Kept, Results
from load_tests.streams.standings import NEAR

OURS = ("eight", "fast", "full")
MARGINS = ("vw_hinge", "vw_boosting", "sk_hinge_noscale")
"""Their scores are not log odds."""
SHOWN = ("full", "fast", "eight", *FEW)
"""Learners of the tables after the first."""
PIECE = 1000
WARM_UP = "diabetes"
"""Stream that is learned once before the clock starts: the first call loads kernels."""
MIN_SHARE = 0.7
"""Share of the streams that a learner of the plot has finished."""
BLOCKS_AFTER = 6

Sizes = Mapping[str, tuple[int, int]]
"""Stream -> rows and columns."""


def measured(peers: Kept) -> tuple[Results, Sizes]:
    """The figures of our models, measured now, with those of the peers.

    Raises ValueError if the rows of a stream are not those of the peers' figures.
    """
    results: Results = {}
    sizes = {}
    for members in OURS:
        of_ours(members, STREAMS[WARM_UP]())
    for name, read in all_streams().items():
        batch = read()
        if digest(batch) != peers.digests[name]:
            raise ValueError(f"the rows of {name} have changed: run with --all-peers")
        sizes[name] = (len(batch), batch.dim)
        ours = {members: of_ours(members, batch) for members in OURS}
        results[name] = ours | peers.figures[name]
    return results, sizes


def of_ours(members: str, batch: Batch) -> Figures:
    return of_spec({"members": members}, batch)


def of_spec(spec: Mapping[str, Any], batch: Batch) -> Figures:
    """A model learns the rows in pieces; each row is scored before it is learned."""
    model = learner(spec, batch)
    began = time.process_time()
    parts = [model.learn(batch[at : at + PIECE]).scores for at in range(0, len(batch), PIECE)]
    return Figures.of(np.concatenate(parts), batch.labels, time.process_time() - began)


def peers_in(results: Results) -> list[str]:
    """Peers that have figures, by family."""
    named = [peer for family in FAMILIES.values() for peer in family]
    return [peer for peer in named if any(peer in figures for figures in results.values())]


def finished(figures: Mapping[str, Figures], names: Iterable[str]) -> dict[str, Figures]:
    """Those learners that scored the whole stream."""
    rows = figures[OURS[0]].rows
    return {name: figures[name] for name in names if name in figures and figures[name].rows == rows}


def gap(figures: Mapping[str, Figures], peer: str) -> float:
    """Points of errors that `full` has more than the peer, on the rows that the peer scored."""
    reached = figures[peer]
    return figures["full"].errors_until(reached.rows) - reached.errors


def ahead(results: Results) -> str:
    """The streams on which a peer is more than NEAR points ahead of `full`."""
    lines = []
    for stream in STREAMS:
        figures = results[stream]
        gaps = {peer: gap(figures, peer) for peer in peers_in(results) if peer in figures}
        for peer in sorted((peer for peer in gaps if gaps[peer] > NEAR), key=lambda p: -gaps[p]):
            rows = figures[peer].rows
            part = "" if rows == figures["full"].rows else f" on the first {rows:,} rows"
            errors = f"{figures[peer].errors:.2f} against {figures['full'].errors_until(rows):.2f}"
            lines.append(f"- **{stream}**: {peer} by {gaps[peer]:.2f} points{part} ({errors}).")
    return "\n".join(lines or ["- nowhere."]) + "\n"


def overview(results: Results, sizes: Sizes) -> str:
    """Our models and the best peer of each family, on each stream."""
    lines = []
    for stream in STREAMS:
        figures = results[stream]
        best = [best_of(figures, family) for family in FAMILIES.values()]
        names = [*OURS, *best]
        least = min((f"{figures[name].errors:.2f}" for name in names if name), key=float)
        cells = [cell(figures, name, f"{figures[name].errors:.2f}" == least) if name else "-"
                 for name in names]  # fmt: skip
        lines.append((stream, *(f"{size:,}" for size in sizes[stream]), *cells))
    return table(("stream", "rows", "columns", *(f"`{name}`" for name in OURS), *FAMILIES), lines)


def best_of(figures: Mapping[str, Figures], family: Iterable[str]) -> str | None:
    """The peer of a family with the fewest errors, of those that scored the whole stream."""
    whole = finished(figures, family)
    return min(whole, key=lambda name: whole[name].errors) if whole else None


def cell(figures: Mapping[str, Figures], name: str, is_least: bool) -> str:
    """Errors, the peer's name, and the time of a row."""
    errors = f"{figures[name].errors:.2f}"
    text = f"**{errors}**" if is_least else errors
    return f"{text}{'' if name in OURS else f' {name}'} ({figures[name].us:.0f})"


def means(results: Results) -> str:
    """Each learner against `full`, over the streams that it finished."""
    lines = []
    for name in (*OURS, *peers_in(results)):
        streams = [stream for stream in STREAMS if finished(results[stream], [name])]
        theirs = [results[stream][name] for stream in streams]
        full = [results[stream]["full"] for stream in streams]
        gaps = np.array([b.errors - a.errors for a, b in zip(theirs, full, strict=True)])
        losses = ("-", "-") if name in MARGINS else (
            f"{np.mean([one.log_loss for one in theirs]):.3f}",
            f"{np.mean([one.log_loss for one in full]):.3f}",
        )  # fmt: skip
        lines.append(
            (
                f"**{name}**" if name in OURS else name,
                len(streams),
                f"{np.mean([one.errors for one in theirs]):.2f}",
                f"{np.mean([one.errors for one in full]):.2f}",
                int((gaps > NEAR).sum()),
                int((gaps < -NEAR).sum()),
                *losses,
                f"{np.median([one.us for one in theirs]):.0f}",
            )
        )
    heads = (
        "learner", "streams", "errors", "of `full`", "ahead of `full`", "behind `full`",
        "log-loss", "of `full`", "us a row, median",
    )  # fmt: skip
    return table(heads, lines)


def common(results: Results) -> tuple[list[str], list[str]]:
    """Learners that finished most streams that are not wide, and the streams they all finished."""
    done = {
        name: {stream for stream in STREAMS if finished(results[stream], [name])}
        for name in (*OURS, *peers_in(results))
    }
    names = [name for name, streams in done.items() if len(streams) >= MIN_SHARE * len(STREAMS)]
    return names, [stream for stream in STREAMS if all(stream in done[name] for name in names)]


def stopped(results: Results) -> str:
    """Peers that reached the time limit, and `full` on the same rows."""
    lines = []
    for stream, figures in results.items():
        for peer in peers_in(results):
            if peer in figures and not finished(figures, [peer]):
                one, full = figures[peer], figures["full"]
                rows = f"{one.rows:,} of {full.rows:,}"
                errors = (f"{one.errors:.2f}", f"{full.errors_until(one.rows):.2f}")
                lines.append((stream, peer, rows, *errors, f"{one.us:,.0f}"))
    heads = ("stream", "peer", "rows", "errors", "of `full`", "us a row")
    return table(heads, lines) if lines else "None was stopped.\n"


def calibration(results: Results) -> str:
    """Log-loss and expected calibration error."""
    return by_stream(results, SHOWN, lambda one: (one.log_loss, one.calibration), "{:.3f}, {:.1f}")


def cold_start(results: Results) -> str:
    """Errors in the first rows."""
    return by_stream(results, SHOWN, lambda one: one.cold, "{:.1f}, {:.1f}")


def by_stream(
    results: Results,
    names: Sequence[str],
    values: Callable[[Figures], tuple[float, float]],
    shape: str,
) -> str:
    """Two figures of each learner and stream; means over the streams that all have finished."""
    names = [name for name in names if name in (*OURS, *peers_in(results))]
    lines, whole = [], []
    for stream in STREAMS:
        done = finished(results[stream], names)
        cells = [shape.format(*values(done[name])) if name in done else "-" for name in names]
        lines.append((stream, *cells))
        if len(done) == len(names):
            whole.append([values(done[name]) for name in names])
    average = np.mean(whole, axis=0)
    lines.append((f"**mean of {len(whole)}**", *(f"**{shape.format(*pair)}**" for pair in average)))
    return table(("stream", *(f"`{name}`" if name in OURS else name for name in names)), lines)


def rare(results: Results) -> str:
    """Errors, area under the curve and average precision where positives are rare."""
    lines = []
    for stream in THINNED:
        figures = results[stream]
        for name in [name for name in SHOWN if name in figures]:
            one = figures[name]
            part = "" if finished(figures, [name]) else f" ({one.rows:,} rows)"
            cells = (f"{one.errors:.2f}", f"{one.auc:.1f}", f"{one.precision:.1f}")
            title = f"**{name}**" if name in OURS else name
            lines.append((stream, title + part, *cells, f"{one.log_loss:.4f}", f"{one.us:.0f}"))
    heads = ("stream", "learner", "errors", "AUC", "average precision", "log-loss", "us a row")
    return table(heads, lines)


def recovery(results: Results, sizes: Sizes) -> str:
    """Errors in each block before and after all labels are inverted."""
    lines = []
    for stream in FLIPPED:
        figures = finished(results[stream], SHOWN)
        block = turn(sizes[stream][0], BLOCK) // BLOCK
        for name, one in figures.items():
            shares = [100.0 * count / BLOCK for count in one.counts]
            cells = [f"{share:.1f}" for share in shares[block - 1 : block + BLOCKS_AFTER]]
            since = 100.0 * sum(one.counts[block:]) / (one.rows - block * BLOCK)
            lines.append((stream, f"**{name}**" if name in OURS else name, *cells, f"{since:.2f}"))
    ends = pairwise(range(0, (BLOCKS_AFTER + 1) * BLOCK, BLOCK))
    heads = ("stream", "learner", "before", *(f"{a + 1:,} to {b:,}" for a, b in ends), "all since")
    return table(heads, lines)

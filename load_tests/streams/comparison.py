"""Tables that compare `eight`, `fast` and `full` with the peers of comparison.json."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from dualstream import solvers
from dualstream.solvers import Batch
from load_tests.markdown import table
from load_tests.measure import processors
from load_tests.streams.cases import kappa_temporal, last_label, turn
from load_tests.streams.compared import FAMILIES, FEW, FLIPPED, STREAMS, THINNED, all_streams
from load_tests.streams.data import digest
from load_tests.streams.figures import BLOCK, Figures
from load_tests.streams.ours import learner
from load_tests.streams.peer_comparison import Kept, Results, kept, write
from load_tests.streams.standings import NEAR

OURS = ("eight", "fast", "full")
MARGINS = ("vw_hinge", "vw_boosting", "sk_hinge_noscale", "moa_srp_10")
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
LastLabels = Mapping[str, float]
"""Stream -> percent of errors of the last label."""


def measure() -> None:
    """Measure our models again and write comparison.json."""
    stored = kept()
    for members in OURS:
        of_ours(members, STREAMS[WARM_UP]())
    for name, batch in batches(stored):
        stored.figures[name] |= {members: of_ours(members, batch) for members in OURS}
    ours = {"identity": solvers.numeric_identity(), "machine": processors()}
    write(replace(stored, ours=ours))


def described(stored: Kept) -> tuple[Sizes, LastLabels]:
    """What the tables say of the streams. Raises ValueError as `batches`."""
    sizes, lasts = {}, {}
    for name, batch in batches(stored):
        sizes[name] = (len(batch), batch.dim)
        lasts[name] = last_label(batch)
    return sizes, lasts


def batches(stored: Kept) -> Iterator[tuple[str, Batch]]:
    """The streams. Raises ValueError if the rows of one are not those of its figures."""
    for name, read in all_streams().items():
        batch = read()
        if digest(batch) != stored.digests[name]:
            raise ValueError(f"the rows of {name} have changed: run with --all-peers")
        yield name, batch


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
    """The peers with fewer errors than `full`, by stream, however small the difference."""
    lines = []
    for stream in STREAMS:
        figures = results[stream]
        better = [
            peer for peer in peers_in(results) if peer in figures and gap(figures, peer) > 0.0
        ]
        cells = [partly(figures, peer) for peer in sorted(better, key=lambda p: -gap(figures, p))]
        if cells:
            lines.append(
                f"- **{stream}**: {', '.join(cells)}; `full` {figures['full'].errors:.2f}."
            )
    return "\n".join(lines or ["- nowhere."]) + "\n"


def partly(figures: Mapping[str, Figures], peer: str) -> str:
    """A peer's errors; if it was stopped, with those of `full` on the same rows."""
    one, full = figures[peer], figures["full"]
    text = f"{peer} {one.errors:.2f}"
    if one.rows == full.rows:
        return text
    return f"{text} (`full` {full.errors_until(one.rows):.2f} on the same {one.rows:,} rows)"


def ahead_in_log_loss(results: Results) -> str:
    """The peers that finished a stream with a smaller log-loss than `full`."""
    lines = []
    for stream in STREAMS:
        figures = finished(results[stream], ("full", *peers_in(results)))
        full = figures["full"].log_loss
        losses = sorted(
            (one.log_loss, peer) for peer, one in figures.items() if peer not in MARGINS
        )
        cells = [f"{peer} {loss:.3f}" for loss, peer in losses if loss < full]
        if cells:
            lines.append(f"- **{stream}**: {', '.join(cells)}; `full` {full:.3f}.")
    return "\n".join(lines or ["- nowhere."]) + "\n"


def overview(results: Results, sizes: Sizes, lasts: LastLabels) -> str:
    """Our models and the best peer of each family, on each stream."""
    lines = []
    for stream in STREAMS:
        figures = results[stream]
        best = [best_of(figures, family) for family in FAMILIES.values()]
        names = [*OURS, *best]
        least = min((f"{figures[name].errors:.2f}" for name in names if name), key=float)
        cells = [cell(figures, name, f"{figures[name].errors:.2f}" == least) if name else "-"
                 for name in names]  # fmt: skip
        about = (*(f"{size:,}" for size in sizes[stream]), f"{lasts[stream]:.2f}")
        lines.append((stream, *about, *cells))
    ours = (f"`{name}`" for name in OURS)
    return table(("stream", "rows", "columns", "last label", *ours, *FAMILIES), lines)


def temporal(results: Results, lasts: LastLabels) -> str:
    """Kappa-temporal of each learner that finished the stream, the largest in bold."""
    names = [name for name in (*SHOWN, *FAMILIES["MOA"]) if name in (*OURS, *peers_in(results))]
    lines = []
    for stream in STREAMS:
        done = finished(results[stream], names)
        cells = {
            name: f"{kappa_temporal(one.errors, lasts[stream]):.3f}" for name, one in done.items()
        }
        most = max(cells.values(), key=float)
        shown = [f"**{most}**" if cells.get(name) == most else cells.get(name, "-")
                 for name in names]  # fmt: skip
        lines.append((stream, f"{lasts[stream]:.2f}", *shown))
    heads = (f"`{name}`" if name in OURS else name for name in names)
    return table(("stream", "last label", *heads), lines)


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

"""The table of classification errors in docs/guides/nonlinear.md."""

from dualstream.solvers.portfolio.presets import FULL_ADDS
from load_tests.markdown import DOCS, table
from load_tests.sections import with_section
from load_tests.streams.compared import STREAMS
from load_tests.streams.comparison import OURS, WARM_UP, Sizes, best_of, of_spec, peers_in
from load_tests.streams.peer_comparison import Results

GUIDE = DOCS / "guides/nonlinear.md"

ABOUT = """\
Percentage of rows predicted wrong, each before it is learned, nothing tuned; mean log-loss in
brackets. At most the first 20,000 rows. Times are CPU time to score and learn a row in bulk, of
`eight`, `fast` and `full`, on {machine}. *Best peer* is the best of LightGBM trained every 500
rows, Vowpal Wabbit, River's trees and forests, streaming random patches of MOA, and linear models,
picked for each stream with hindsight: see [Classification
streams](../internals/streams.md#comparison-of-all-models).
Written by `DUALSTREAM_DATA=... python -m load_tests.streams`.
"""
COSTS = """\
Microseconds of CPU to score and learn a row in bulk, on {machine}: streams of the next table, with
their columns. A server adds the cost of requests: see [Sizing](../operate/sizing.md).
"""
TIMED = ("elec2", "RandomRBF", "phishing", "a9a", "mnist")


def write(results: Results, sizes: Sizes, machine: str, *, with_costs: bool) -> None:
    """Without costs the times of the members, which are measured here, stay as they are."""
    text = GUIDE.read_text()
    about = ABOUT.format(machine=machine)
    sections = {"Errors of classes": about + "\n" + classes(results, sizes)}
    if with_costs:
        sections["Cost of a row"] = COSTS.format(machine=machine) + "\n" + costs(results, sizes)
    for title, body in sections.items():
        text = with_section(text, title, body.splitlines())
    GUIDE.write_text(text)


def costs(results: Results, sizes: Sizes) -> str:
    """Time of a row of each nonlinear learner alone, and of our portfolios."""
    alone = {one["name"]: {k: v for k, v in one.items() if k != "name"} for one in FULL_ADDS}
    batches = {stream: STREAMS[stream]() for stream in TIMED}
    lines = []
    for name, spec in alone.items():
        of_spec(spec, STREAMS[WARM_UP]())
        times = [of_spec(spec, batch).us for batch in batches.values()]
        lines.append((f"`{name}`", *(f"{us:.1f}" for us in times)))
    for name in OURS:
        lines.append((f"`{name}`", *(f"{results[stream][name].us:.1f}" for stream in TIMED)))
    heads = (f"{stream}, {sizes[stream][1]}" for stream in TIMED)
    return table(("learner", *heads), lines)


def classes(results: Results, sizes: Sizes) -> str:
    lines = []
    for stream in STREAMS:
        figures = results[stream]
        ours = [figures[name] for name in OURS]
        shown = [f"{one.errors:.2f}" for one in ours]
        least = min(shown, key=float)
        cells = [
            f"{f'**{errors}**' if errors == least else errors} ({one.log_loss:.3f})"
            for errors, one in zip(shown, ours, strict=True)
        ]
        best = best_of(figures, peers_in(results))
        peer = f"{figures[best].errors:.2f} {best}" if best else "-"
        times = " / ".join(f"{one.us:.1f}" for one in ours)
        lines.append((stream, *(f"{size:,}" for size in sizes[stream]), *cells, times, peer))
    heads = ("stream", "rows", "columns", *(f"`{name}`" for name in OURS), "us a row", "best peer")
    return table(heads, lines)

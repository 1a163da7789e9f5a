"""Classification results as Markdown tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from load_tests.markdown import table
from load_tests.streams.cases import kappa_temporal
from load_tests.streams.ours import OURS
from load_tests.streams.standings import NEAR, Standing, best_log_loss, score

KAPPA_OF = "eight"


def learners(standings: Sequence[Standing]) -> list[str]:
    """Ours, then the peers that ran on every stream."""
    return [*OURS, *(p for p in standings[0].peers if all(p in s.peers for s in standings))]


def scores(standings: Sequence[Standing]) -> str:
    """Summary of each learner over all streams."""
    lines = []
    for name in learners(standings):
        s = score(standings, name)
        counts = (f"{s.near} of {s.streams}", f"{s.first} of {s.streams}")
        sizes = (f"{s.mean_behind:+.2f}", f"{s.worst_behind:+.2f}", f"{s.log_loss:.3f}")
        lines.append((bold(name), *counts, *sizes))
    best = f"{best_log_loss(standings):.3f}"
    count = f"{len(standings)} of {len(standings)}"
    lines.append(("*the best peer of each stream*", count, count, "0", "0", best))
    heads = (
        "learner", f"within {NEAR} points of the best peer", "no peer better",
        "points behind, mean", "worst", "mean log-loss",
    )  # fmt: skip
    return table(heads, lines)


def bold(name: str) -> str:
    return f"**{name}**" if name in OURS else name


def overview(standings: Sequence[Standing], reference: Mapping[str, Any]) -> str:
    """Mistakes of ours and of the best peer."""
    lines = []
    for s in standings:
        figures = s.figures()
        tuned = reference.get(s.name, {}).get("best_tuned")
        lines.append(
            (
                s.name,
                f"{s.rows:,}",
                *(f"{figures[name][0]:.2f} ({s.behind(name):+.2f})" for name in OURS),
                f"{figures[s.best][0]:.2f} ± {s.best_error:.2f} {marked(s, s.best)}",
                *((f"{tuned[1]:.2f} {tuned[0]}" if tuned else "",) if reference else ()),
                f"{s.last_label:.2f}",
                ", ".join(kappas(s)),
            )
        )
    heads = ("stream", "rows", *map(bold, OURS), "best peer")
    heads += ("best tuned peer †",) if reference else ()
    return table((*heads, "the last label", f"Kappa-temporal, {KAPPA_OF}, best peer"), lines)


def kappas(s: Standing) -> list[str]:
    """Kappa-temporal of KAPPA_OF and of the best peer."""
    figures = s.figures()
    return [f"{kappa_temporal(figures[name][0], s.last_label):.2f}" for name in (KAPPA_OF, s.best)]


def marked(s: Standing, name: str) -> str:
    return f"{name} †" if name in s.reference_only else name


def mistakes(standings: Sequence[Standing]) -> str:
    """Percentage of errors of every learner on every stream, the smallest in bold."""
    names = learners(standings)
    lines = []
    for s in standings:
        figures = s.figures()
        cells = [f"{figures[name][0]:.2f}" for name in names]
        least = min(cells, key=float)
        lines.append((s.name, *(f"**{cell}**" if cell == least else cell for cell in cells)))
    return table(("stream", *names), lines)


def losses_of_ours(standings: Sequence[Standing]) -> str:
    """For each of ours, the streams on which the best peer is well ahead."""
    lines = []
    for name in OURS:
        lost = sorted(
            (s for s in standings if s.behind(name) > NEAR), key=lambda s: -s.behind(name)
        )
        streams = ", ".join(
            f"{s.name} {s.behind(name):+.2f} (to {marked(s, s.best)})" for s in lost
        )
        lines.append(f"- **{name}** on {len(lost)} of {len(standings)}: {streams or 'none'}.")
    return "\n".join(lines) + "\n"


def reference_only(standings: Sequence[Standing]) -> str:
    """Figures taken over from the reference."""
    lines = [
        (s.name, peer, f"{pair[0]:.2f}", f"{pair[1]:.3f}")
        for s in standings
        for peer, pair in s.reference_only.items()
    ]
    return table(("stream", "peer", "errors", "log-loss"), lines)

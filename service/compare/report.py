"""The report of a comparison: one HTML page without scripts and without anything from outside."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from dualstream.service.compare.figures import CLIP
from dualstream.service.compare.line_chart import Line, line_chart
from dualstream.service.compare.tables import figures_table, parts_table
from dualstream.wire.plural import plural

_STATIC = Path(__file__).parent.parent / "static"
_COARSE = 5
"""Points of the curve that are one in the chart of errors."""

_STYLE = """\
main { max-width: 62rem; margin: 1rem auto 3rem; padding: 0 1rem; }
h1 { font-size: 1.35rem; margin: 1.2rem 0 0.2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 0.4rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  box-shadow: var(--shadow); padding: 0.9rem 1.1rem; margin: 0.9rem 0; overflow-x: auto; }
p { margin: 0.3rem 0; }
.quiet, figcaption { color: var(--quiet); font-size: 0.87rem; }
.ahead, .behind, .neither { border-left: 4px solid var(--idle-soft); padding-left: 0.7rem; }
.ahead { border-color: var(--good); }
.behind { border-color: var(--bad); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: 0.25rem 0.9rem 0.25rem 0; text-align: right; }
tr > * { border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--quiet); font-size: 0.87rem; }
th:first-child, td:first-child, .named th:last-child, .named td:last-child { text-align: left; }
figure { margin: 0; }
svg.chart { width: 100%; height: auto; min-width: 30rem; font: 12px system-ui, sans-serif; }
svg.chart text { fill: var(--quiet); }
svg.chart .grid { stroke: var(--grid); }
svg.chart .zero { stroke: var(--edge); }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1.1rem; font-size: 0.87rem; }
.legend i { display: inline-block; width: 1.1rem; height: 0; margin-right: 0.4rem;
  vertical-align: middle; border-top: 3px solid; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.15rem 1.2rem; margin: 0; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
@media print { section { break-inside: avoid; box-shadow: none; } }
"""


def report_of(result: Mapping[str, Any]) -> str:
    """The page of a result."""
    sections = [
        _section("Outcome", _conclusions(result)),
        _section("All learners on the same rows", _html_table(*figures_table(result))),
        *_charts(result),
        _section("Who was ahead when", _html_table(*parts_table(result), names="named")),
        _section("What was run", _about(result)),
    ]
    title = escape(f"Comparison on {Path(result['file']).name}")
    icon = (_STATIC / "icon.svg").read_text()
    icon = icon[icon.index("<svg") :].replace("<svg", '<svg width="24" height="24"', 1)
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8" />
<meta name="viewport" content="width=device-width, initial-scale=1" />
<title>{title}</title>
<style>
{(_STATIC / "theme.css").read_text()}{_STYLE}</style>
</head>
<body>
<header class="bar"><span class="brand">{icon} Dualstream</span></header>
<main>
<h1>{title}</h1>
<p class="quiet">{escape(_rows(result))}</p>
{"".join(sections)}</main>
</body>
</html>
"""


def _rows(result: Mapping[str, Any]) -> str:
    refused = f", {result['refused']:,} refused" if result["refused"] else ""
    stopped = f"; stopped after row {result['done']:,}" if result["is_interrupted"] else ""
    label = f"{result['task']}, label {result['label']}"
    compared = f"compared on {result['compared']:,} from row {result['compared_from'] or 0:,} on"
    return f"{result['rows']:,} rows{refused}; {label}; {compared}{stopped}"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>\n"


def _conclusions(result: Mapping[str, Any]) -> str:
    kinds = {"Ahead": "ahead", "Behind": "behind"}
    lines = [(kinds.get(text.split(" ")[0], "neither"), text) for text in result["conclusions"]]
    lines = lines or [("neither", "Nothing is compared yet.")]
    return "".join(f'<p class="{kind}">{escape(text)}</p>\n' for kind, text in lines)


def _html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], names: str = "figures") -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return f'<table class="{names}"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>\n'


def _charts(result: Mapping[str, Any]) -> list[str]:
    """The chart of errors, and the one of what is gained over each peer."""
    if not result["compared"]:
        return []
    is_number, rows = result["task"] == "regression", result["rows"]
    counts = np.array(result["curve_rows"], np.float64)
    sums = {
        one["name"]: np.nan_to_num(np.array(one["curve"], np.float64)) * counts
        for one in result["contestants"]
    }
    colors = {name: f"var(--c{at % 8 + 1})" for at, name in enumerate(sums)}
    coarse = counts.reshape(-1, _COARSE).sum(axis=1)
    ends = rows * (np.arange(len(coarse)) + 0.5) / len(coarse)
    has_rows = coarse > 0.0
    unit = 1.0 if is_number else 100.0
    lines = [
        Line(
            name,
            colors[name],
            ends[has_rows],
            unit * one.reshape(-1, _COARSE).sum(axis=1)[has_rows] / coarse[has_rows],
        )
        for name, one in sums.items()
    ]
    first = result["contestants"][0]["name"]
    ends_of_points = rows * (np.arange(len(counts)) + 1.0) / len(counts)
    counted = counts > 0.0
    others = [one for one in result["contestants"][1:] if one["kind"] != "baseline"]
    gains = [
        Line(
            one["name"],
            colors[one["name"]],
            ends_of_points[counted],
            np.cumsum(sums[one["name"]] - sums[first])[counted],
        )
        for one in others or result["contestants"][1:]
    ]
    what = "Mean absolute error" if is_number else "Errors in percent"
    saved = "Absolute error saved" if is_number else "Errors saved"
    trained = [at for at in result["run"]["retrainings"] if at <= result["done"]]
    about = "Marks below: retrainings of the peers." if len(trained) <= 100 else ""
    marks = trained if about else []
    rising = f"A line that rises: {first} is ahead of this one in these rows."
    return [
        _section(f"{what} over time", line_chart(what, rows, lines, marks, about)),
        _section(f"{saved} so far", line_chart(saved, rows, gains, [], rising)),
    ]


def _about(result: Mapping[str, Any]) -> str:
    run = result["run"]
    peers = [one for one in result["contestants"] if one["about"]]
    clipped = ""
    if result["task"] == "regression":
        clipped = f"; errors are clipped at {CLIP:g} times their running mean"
    entries = [
        *((one["name"], one["about"]) for one in peers),
        (
            "peers",
            f"retrained {run['retrained']} on the newest {run['window']},"
            f" threads: {run['threads']}",
        ),
        ("peers get", f"{run['peers_get']} with {plural(run['columns'], 'column')}"),
        ("labels", "at once" if run["delay"] == "0 rows" else f"{run['delay']} late, for everyone"),
        ("intervals", f"{100 * run['level']:g} % at all rows at once, each by itself{clipped}"),
        ("time", f"{run['seconds']:,.0f} s; figures of time are CPU time"),
        ("version", f"Dualstream {run['dualstream']}"),
        *(("note", note) for note in result["notes"]),
    ]
    return (
        "<dl>"
        + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>\n" for name, text in entries)
        + "</dl>\n"
    )

"""The result of a comparison as JSON, and the sentences that sum it up."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Any

from dualstream.service.compare.contestants import Contestant
from dualstream.service.compare.figures import CLIP
from dualstream.service.compare.file_rows import FileRows
from dualstream.service.compare.frozen import Frozen, ranks_in_reverse
from dualstream.service.compare.options import Options
from dualstream.service.compare.peers import Peer
from dualstream.service.compare.run import Run
from dualstream.wire.plural import plural

PARTS = 10
"""Parts of the rows, for who is ahead when."""


def result_of(run: Run, read: FileRows, options: Options, file: str) -> dict[str, Any]:
    """Everything about the comparison, for --json and for the report."""
    compared = run.figures[run.first.name].rows
    contestants = [_contestant(run, one, options.level) for one in run.contestants]
    return {
        "file": file,
        "task": run.task,
        "label": (read.spec.get("columns") or {}).get("label", "y"),
        "rows": len(run.rows),
        "refused": read.refused,
        "done": run.done,
        "is_interrupted": run.is_interrupted,
        "compared_from": None if run.compare_from is None else run.compare_from + 1,
        "compared": compared,
        "positives": _share_of_positives(run),
        "run": _about_run(run, read, options),
        "contestants": contestants,
        "curve_rows": run.figures[run.first.name].curve_rows,
        "parts": _parts(run),
        "drift": run.drift.counts(),
        "conclusions": [
            sentence
            for one in contestants[1:]
            if (sentence := conclusion(one, run, options)) is not None
        ],
        "notes": [
            *read.notes,
            *_refusals(read),
            *run.notes,
            *_about_outputs(run),
            *about_large_errors(contestants),
        ],
    }


def _about_outputs(run: Run) -> list[str]:
    frozen = [one for one in run.contestants if isinstance(one, Frozen)]
    notes = [one.note(run.figures[one.name].summary()) for one in frozen]
    return [note for note in notes if note]


def about_large_errors(contestants: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning if a gain that is shown contradicts the mean absolute errors."""
    ours = contestants[0].get("mae")
    names = [
        one["name"]
        for one in contestants[1:]
        if ours is not None
        and (gain := one["gain"]) is not None
        and (one["mae"] < ours if gain["low"] > 0.0 else one["mae"] > ours and gain["high"] < 0.0)
    ]
    if not names:
        return []
    return [
        f"warning: MAE and gain disagree about {', '.join(names)}: the gain clips errors at"
        f" {CLIP:g} times their running mean; decide by what a large error costs"
    ]


def _refusals(read: FileRows) -> list[str]:
    if not read.refused:
        return []
    return [f"{plural(read.refused, 'row')} refused, such as: {read.reasons[0]}"]


def _contestant(run: Run, one: Contestant, level: float) -> dict[str, Any]:
    figures, gain = run.figures[one.name], run.gains.get(one.name)
    is_counted = gain is not None and gain.rows > 0
    return {
        "name": one.name,
        "kind": one.kind,
        "about": one.about,
        **figures.summary(),
        "us_per_row": 1e6 * one.predict_s / one.predicted if one.predicted else None,
        "trainings": one.trainings,
        "train_s": one.train_s,
        "failed_trainings": one.failed if isinstance(one, Peer) else 0,
        "gain": gain.summary(level) if gain is not None and is_counted else None,
        "curve": figures.mean_by(len(figures.curve)),
    }


def _about_run(run: Run, read: FileRows, options: Options) -> dict[str, Any]:
    every = options.retrain_every
    schedule = run.schedule
    return {
        "retrained": f"every {every}" if every else plural(len(schedule.retrainings), "time"),
        "retrainings": [row + 1 for row in schedule.retrainings],
        "window": str(options.window),
        "delay": str(options.delay),
        "threads": options.threads,
        "times": read.times,
        "level": options.level,
        "peers_get": "a table" if read.columns is not None else "encoded rows",
        "columns": run.rows.widths["table"] if read.columns is not None else len(run.rows.features),
        "seconds": run.seconds,
        "dualstream": version("dualstream"),
    }


def _share_of_positives(run: Run) -> float | None:
    if run.task != "binary" or not run.done:
        return None
    return float((run.rows.labels(0, run.done) > 0.0).mean())


def part_bounds(rows: int) -> list[int]:
    """The first row of each part, as the points of curves have them, and the number of rows."""
    return [-(-rows * part // PARTS) for part in range(PARTS + 1)]


def _parts(run: Run) -> list[dict[str, Any]]:
    """Equal parts of the rows, each with the mean loss of all and which one is ahead."""
    losses = {name: figures.mean_by(PARTS) for name, figures in run.figures.items()}
    parts = []
    for part, (first, stop) in enumerate(pairwise(part_bounds(len(run.rows)))):
        means = {name: loss for name, one in losses.items() if (loss := one[part]) is not None}
        if means:
            begin = max(first, run.compare_from or 0)
            times = run.rows.times
            parts.append(
                {
                    "first": begin + 1,
                    "last": min(stop, run.done),
                    "from": float(times[begin]) if len(times) else None,
                    "losses": means,
                    "ahead": _ahead(means),
                }
            )
    return parts


def _ahead(means: Mapping[str, float]) -> str | None:
    """The name with the least loss; None if several have it."""
    least = min(means.values())
    names = [name for name, loss in means.items() if loss == least]
    return names[0] if len(names) == 1 else None


def conclusion(one: Mapping[str, Any], run: Run, options: Options) -> str | None:
    """A sentence about the gain over a contestant; None for a baseline that is clearly worse,
    and for a saved model that seems to be read in reverse."""
    gain = one["gain"]
    if gain is None or ranks_in_reverse(one):
        return None
    low, high = gain["low"], gain["high"]
    if high < 0.0:
        low, high = -high, -low
    percent = f"{100.0 * options.level:g} %"
    unit, rows = _unit(run.task), f"on {plural(gain['rows'], 'row')}"
    bounds = f"({percent}: {_number(low)} to {_number(high)})"
    amount = f"by {_number(abs(gain['percent']))} {unit} {bounds} {rows}"
    article = "the " if one["kind"] == "baseline" else ""
    other = f"{article}{one['name']}{_how(one, run, options)}"
    if gain["low"] > 0.0:
        return None if one["kind"] == "baseline" else f"Ahead of {other} {amount}."
    if gain["high"] < 0.0:
        if one["kind"] == "baseline":
            return f"Behind {other} {amount}: these columns do not predict this label."
        return f"Behind {other} {amount}; {_advice(one, run)}."
    shown = f"{_number(gain['percent'])} {unit} {bounds}"
    return f"No difference from {other} can be shown {rows}: {shown}."


def _number(percent: float) -> str:
    return f"{percent:.2f}" if abs(percent) < 1.0 else f"{percent:.1f}"


def _how(one: Mapping[str, Any], run: Run, options: Options) -> str:
    if one["kind"] != "peer":
        return ""
    if options.retrain_every is not None:
        return f" retrained every {options.retrain_every}"
    return f" retrained {plural(one['trainings'], 'time')}"


def _advice(one: Mapping[str, Any], run: Run) -> str:
    if one["kind"] == "learner":
        return f"use the specification of {one['name']}"
    is_drifting = run.drift.counts()["adwin"]["rising"] > 0
    what = "although drift was detected in" if is_drifting else "no drift was detected in"
    comma = "," if is_drifting else ":"
    return f"keep {one['name']}{comma} {what} this file"


def _unit(task: str) -> str:
    return "percent of the mean absolute error (clipped)" if task == "regression" else "points"

"""Tables of a result as texts, for the terminal and the report."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Cells = list[str]

RARE = 0.1
"""Below this share of positives the table has the average precision instead of the AUC."""
_FIGURES: Mapping[str, Sequence[tuple[str, str]]] = {
    "binary": (
        ("error_rate", "errors"),
        ("log_loss", "log-loss"),
        ("auc", "AUC"),
        ("average_precision", "AP"),
        ("calibration_error", "calibration"),
    ),
    "multiclass": (("error_rate", "errors"), ("log_loss", "log-loss")),
    "regression": (("mae", "MAE"), ("rmse", "RMSE")),
}
"""Figures of each task, and their titles."""
_IN_PERCENT = ("error_rate", "calibration_error")


def figures_table(result: Mapping[str, Any]) -> tuple[Cells, list[Cells]]:
    """Heads and rows: figures of all contestants, and the gain over each."""
    is_rare = result["positives"] is not None and result["positives"] < RARE
    names = dict(_FIGURES[result["task"]])
    names.pop("auc" if is_rare else "average_precision", None)
    level = f"gain ({100 * result['run']['level']:g} %)"
    rows = []
    for one in result["contestants"]:
        count = one["trainings"]
        trained = f"{count} x {one['train_s'] / count:.2g} s" if count else ""
        cells = [_figure(figure, one.get(figure)) for figure in names]
        spent = "" if one["us_per_row"] is None else f"{one['us_per_row']:,.1f}"
        rows.append([one["name"], *cells, spent, trained, _gain(one["gain"])])
    return ["", *names.values(), "us a row", "training", level], rows


def parts_table(result: Mapping[str, Any]) -> tuple[Cells, list[Cells]]:
    """Mean loss in parts of the rows without that of baselines, and which one is ahead of all."""
    names = [one["name"] for one in result["contestants"] if one["kind"] != "baseline"]
    figure = "mae" if result["task"] == "regression" else "error_rate"
    is_timed = result["run"]["times"] == "times"
    rows = []
    for part in result["parts"]:
        cells = [_figure(figure, part["losses"].get(name)) for name in names]
        since = [_day(part["from"])] if is_timed else []
        rows.append(
            [f"{part['first']:,}-{part['last']:,}", *since, *cells, part["ahead"] or "equal"]
        )
    return ["rows", *(["from"] if is_timed else []), *names, "ahead"], rows


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2%}" if name in _IN_PERCENT else f"{value:.4g}"


def _gain(gain: Mapping[str, float] | None) -> str:
    if gain is None:
        return ""
    return f"{gain['percent']:+.2f} ({gain['low']:.2f} to {gain['high']:.2f})"

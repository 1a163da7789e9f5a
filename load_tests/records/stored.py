"""Figures in records.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

FILE = Path(__file__).with_name("records.json")

Figures = dict[str, dict[str, list[float] | str]]
"""File -> learner -> errors and microseconds of CPU a row, or the limit that ended the run."""


class Records(TypedDict):
    """Contents of records.json."""

    versions: dict[str, str]
    machine: str
    """Of the peers' figures."""
    full: dict[str, str]
    """Numeric identity and machine of the default model's figures."""
    sizes: dict[str, list[int]]
    """File -> rows and columns."""
    classes: Figures
    numbers: Figures


class LimitError(RuntimeError):
    """A run reached a limit of time or memory."""


def read() -> Records:
    records: Records = json.loads(FILE.read_text())
    return records


def write(records: Records) -> None:
    """One line for each file."""
    parts = [f"{json.dumps(part)}: {_lines(value)}" for part, value in records.items()]
    FILE.write_text("{" + ",\n".join(parts) + "}\n")


def _lines(value: object) -> str:
    if not isinstance(value, dict) or not any(isinstance(one, dict) for one in value.values()):
        return json.dumps(value)
    lines = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in value.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def measure(
    figures: Figures, name: str, learner: str, run: Callable[[], tuple[float, ...]]
) -> None:
    """Six digits of each figure, or the limit that the run reached."""
    line = figures.setdefault(name, {})
    try:
        line[learner] = [float(f"{figure:.6g}") for figure in run()]
    except LimitError as limit:
        line[learner] = str(limit)
    print(name, learner, line[learner], flush=True)

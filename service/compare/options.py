"""Options of a comparison: spans of rows or of time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dualstream.client import BadInput
from dualstream.wire.plural import plural

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
RETRAININGS = 20
NEWEST = 200_000
"""Rows that a peer is trained on by default."""


@dataclass(frozen=True, slots=True)
class Span:
    """A number of rows, or seconds."""

    rows: int = 0
    seconds: float | None = None
    text: str = "0"

    def __bool__(self) -> bool:
        return self.rows > 0 or bool(self.seconds)

    def __str__(self) -> str:
        return plural(self.rows, "row") if self.seconds is None else self.text


def span_of(option: str, text: str) -> Span:
    """5000 or 5_000 rows, or a time such as 30m, 12h, 7d. Raises BadInput."""
    match = _SPAN.fullmatch(text.replace("_", "").replace(",", ""))
    if match is None or ("." in match[1] and not match[2]):
        raise BadInput(f"{option} must be a number of rows or a time such as 12h or 7d: {text!r}")
    number, unit = match.groups()
    if unit:
        return Span(seconds=float(number) * _SECONDS[unit], text=text)
    return Span(rows=int(number), text=text)


@dataclass(frozen=True, slots=True)
class Options:
    """What is compared, and how."""

    peers: Sequence[str] = ()
    """Names of peers; empty: chosen by the columns."""
    specs: Sequence[dict[str, Any]] = ()
    """Specifications of further learners."""
    retrain_every: Span | None = None
    """None: RETRAININGS at equal distances."""
    window: Span = field(default_factory=lambda: Span(rows=NEWEST, text=str(NEWEST)))
    delay: Span = field(default_factory=Span)
    threads: int = 1
    frozen_from: int | None = None
    """The first row, from 1, that counts with a saved model; None: after the first tenth."""
    level: float = 0.95

    def check(self, has_times: bool) -> None:
        """Raise BadInput for spans that a comparison cannot have."""
        spans = {"--retrain-every": self.retrain_every, "--window": self.window}
        for name, span in spans.items():
            if span is not None and not span:
                raise BadInput(f"{name} must be more than 0")
        for name, span in (spans | {"--delay": self.delay}).items():
            if span is not None and span.seconds is not None and not has_times:
                raise BadInput(f"{name} {span.text} is a time: name the column with --time COLUMN")

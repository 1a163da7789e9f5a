"""Response types of the client alone; the others are those of the server, in wire/.

An absent field is None. /docs of a server documents every field.
"""

from typing import Any

from msgspec import Struct

from dualstream.wire.responses import MaybeStale


class Timeline(MaybeStale, kw_only=True):
    """Metrics over learned rows, with drifts of the loss and pauses by the guard."""

    model: str
    seq: int
    samples: int
    points: list[dict[str, Any]]
    events: list[dict[str, Any]]
    times: list[dict[str, Any]]


class Event(Struct, kw_only=True):
    """Server-sent event of a model; `deleted` is the last one."""

    kind: str
    id: str
    data: dict[str, Any]

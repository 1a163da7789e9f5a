"""What can go wrong between a client and its server.

ClientError
  BadInput      what was given cannot be sent: it is no sample, no such file, of no known format
  Refused       the server said no: status, kind, detail and the refused rows
  Unreachable   nobody has answered, or only that they cannot serve now, for `patience_s`

`Refused` is told at once, as it would be refused again; what may pass is tried again before.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class ClientError(Exception):
    """Any of them; the message says what to do about it."""


class BadInput(ClientError, ValueError):
    """What was given cannot be sent."""


class Refused(ClientError):
    """The server's problem+json, as `problem` whole and by its fields."""

    def __init__(self, problem: Mapping[str, Any], status: int) -> None:
        self.problem = dict(problem)
        self.status = status
        self.kind: str = str(problem.get("type", "")).rpartition("/")[2]
        """As `unknown-model` or `invalid-rows`."""
        self.detail: str = str(problem.get("detail") or f"the server answered {status}")
        self.errors: Sequence[Mapping[str, Any]] = problem.get("errors") or []
        """The first 100 refused rows: index, pointer, reason; line in formats of lines."""
        super().__init__(self.detail)


class Unreachable(ClientError):
    """Tried again for as long as was asked; `__cause__` is the last failure."""

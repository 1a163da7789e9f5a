"""Exceptions of the client.

ClientError
  BadInput      cannot be sent: an invalid sample, a missing file, an unknown format
  Refused       the server said no: status, kind, detail and the refused rows
  Unreachable   no answer, or only answers to come back later, for `patience_s`

`Refused` is raised at once, because a retry gets the same answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class ClientError(Exception):
    """Base class; the message says what to do."""


class BadInput(ClientError, ValueError):
    """The input cannot be sent."""


class Refused(ClientError):
    """The server's problem+json: the whole document as `problem`, and its fields."""

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
    """Retried for `patience_s` in vain; `__cause__` is the last failure."""

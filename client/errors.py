"""Exceptions of the client.

ClientError
  BadInput      input that cannot be sent: an invalid sample, a missing file, an unknown format
    NoRows      a file without rows
  Refused       an error response: status, kind, detail and the refused rows
  Unreachable   for `patience_s` no response of the server itself, or only 408, 421, 425, 429, 502,
                503 and 504

`Refused` is raised without a retry, which has the same result.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class ClientError(Exception):
    """Base class; the message says what to do."""


class BadInput(ClientError, ValueError):
    """The input cannot be sent."""


class NoRows(BadInput):
    """A file without rows: it is empty, or has a header alone."""


class Refused(ClientError):
    """The server's problem+json: the whole document as `problem`, and its fields."""

    def __init__(self, problem: Mapping[str, Any], status: int) -> None:
        self.problem = dict(problem)
        self.status = status
        self.kind: str = str(problem.get("type", "")).rpartition("/")[2]
        """Slug of the problem, such as `unknown-model` or `invalid-rows`."""
        self.detail: str = str(problem.get("detail") or f"the server answered {status}")
        self.errors: Sequence[Mapping[str, Any]] = problem.get("errors") or []
        """The first 100 refused rows: index, pointer, reason; also line in line formats."""
        super().__init__(self.detail)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.status)

    @property
    def has_no_rows(self) -> bool:
        """The body has no rows at all, for example a header alone."""
        return self.kind == "invalid-rows" and "rejected" not in self.problem


class Unreachable(ClientError):
    """All retries within `patience_s` failed; `__cause__` is the last failure."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        self.retry_after_s = retry_after_s
        """Seconds that the server asked to wait; 0 if it did not answer."""
        super().__init__(reason)

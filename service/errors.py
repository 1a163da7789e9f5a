"""The only mapping from exceptions to problem+json (RFC 9457).

    Problem                     any refusal that a client sees
      raised as such by the service, or made here from the exceptions of the layers below:
      solvers.InvalidSpec       422 invalid-spec
      solvers.UnknownMember     404 unknown-member
      solvers.MemberError       409 conflict
      journal UnknownModel      404 unknown-model
      journal Conflict          409 conflict
      journal TooManyVersions   409 too-many-versions
      journal ModelChanged      409 model-changed
      journal TooManyRemembered 429 too-many-remembered
      journal OutcomeUnknown    503 outcome-unknown
      journal NotReplicated     503 not-replicated
      journal JournalUnavailable 503 store-unavailable
      journal RecordError       503 unreadable-journal

One shape for all: {"type", "title", "status", "detail", "instance", "errors", "error"}.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from service.journal.protocol import (
    Conflict,
    JournalError,
    JournalUnavailable,
    ModelChanged,
    NotReplicated,
    OutcomeUnknown,
    TooManyRemembered,
    TooManyVersions,
    UnknownModel,
)
from service.journal.record import RecordError
from solvers import InvalidSpec, MemberError, UnknownMember

MEDIA_TYPE = "application/problem+json"
# Bad rows named in one answer; the count of all is always told.
MAX_ERRORS = 100


@dataclass(frozen=True, slots=True)
class RowError:
    """Why one row was refused: its place in the request, a JSON pointer, and the reason."""

    index: int
    pointer: str
    reason: str
    line: int | None = None

    def as_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "index": self.index,
            "pointer": self.pointer,
            "reason": self.reason,
        }
        if self.line is not None:
            told["line"] = self.line
        return told


class Problem(Exception):
    """A refusal: `slug` names the kind, `detail` says what to do about this one."""

    def __init__(
        self,
        status: int,
        slug: str,
        detail: str,
        errors: Sequence[RowError] = (),
        retry_after_s: int | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.slug = slug
        self.detail = detail
        self.errors = errors
        self.retry_after_s = retry_after_s
        self.extra = extra

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if "allow" in self.extra:
            headers["allow"] = self.extra["allow"]
        return headers

    def body(self, instance: str) -> bytes:
        """The problem document for a request to the path `instance`."""
        return msgspec.json.encode(
            {
                "type": f"/problems/{self.slug}",
                "title": self.slug.replace("-", " ").capitalize(),
                "status": self.status,
                "detail": self.detail,
                "instance": instance,
                "errors": [error.as_dict() for error in self.errors[:MAX_ERRORS]],
                "error": self.detail,
                **self.extra,
            }
        )


def unknown_model(model: str) -> Problem:
    return Problem(404, "unknown-model", f"no model {model!r}")


def unreadable(reason: str) -> Problem:
    """For one model whose journal this version cannot read; others are served."""
    return Problem(503, "unreadable-journal", reason, retry_after_s=60)


def unavailable(reason: str) -> Problem:
    return Problem(503, "store-unavailable", reason, retry_after_s=1)


def as_problem(error: Exception) -> Problem | None:
    """The Problem that an exception of a lower layer means to a client, if it means one."""
    match error:
        case Problem():
            return error
        case InvalidSpec():
            pointed = RowError(0, error.field, str(error))
            return Problem(422, "invalid-spec", str(error), [pointed])
        case UnknownMember():
            return Problem(404, "unknown-member", str(error))
        case MemberError():
            return Problem(409, "conflict", str(error))
        case UnknownModel():
            return Problem(404, "unknown-model", str(error))
        case TooManyVersions():
            return Problem(409, "too-many-versions", f"{error}; delete one first")
        case ModelChanged():
            return Problem(409, "model-changed", str(error))
        case Conflict():
            return Problem(409, "conflict", str(error))
        case TooManyRemembered():
            return Problem(429, "too-many-remembered", str(error), retry_after_s=60)
        case OutcomeUnknown():
            detail = f"{error}; repeat the request with the same Idempotency-Key"
            return Problem(503, "outcome-unknown", detail, retry_after_s=1, outcome="unknown")
        case NotReplicated():
            detail = f"{error}; repeat the request with the same Idempotency-Key"
            return Problem(503, "not-replicated", detail, retry_after_s=1, outcome="journalled")
        case RecordError():
            return unreadable(str(error))
        case JournalUnavailable():
            return unavailable(str(error))
        case JournalError():
            return Problem(503, "journal-error", str(error), retry_after_s=1)
    return None

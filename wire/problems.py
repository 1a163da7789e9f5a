"""A refusal as clients see it: one shape for all, problem+json (RFC 9457).

{"type", "title", "status", "detail", "instance", "errors", "error"}; service/api/errors.py maps
exceptions to problems.

A refusal stays short, whatever it refuses: what a client gave is `quoted`, and whatever else comes
into a detail, a reason or a pointer is `shortened` where these are made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

MEDIA_TYPE = "application/problem+json"
# Bad rows named in one answer; the count of all is always told.
MAX_ERRORS = 100
MAX_QUOTED = 128
"""Characters of what a client gave: no model's id is longer."""
MAX_TOLD = 1000
"""Characters of a detail, a reason, a pointer; none is as long that quotes nothing."""
_END = 200
# In between, where something was left out.
_CUT = "..."


def beginning(text: str) -> str:
    """The text, or of a long one as much as is quoted."""
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + _CUT


def quoted(given: object) -> str:
    """What a client gave, as Python writes it; of something long the beginning."""
    if isinstance(given, str) and len(given) > MAX_QUOTED:
        return repr(given[:MAX_QUOTED]) + _CUT
    return repr(given) if isinstance(given, str) else beginning(repr(given))


def shortened(text: str) -> str:
    """The text, or both its ends: what was refused stands in the middle, or at either."""
    return text if len(text) <= MAX_TOLD else text[:_END] + _CUT + text[-_END:]


@dataclass(frozen=True, slots=True)
class RowError:
    """Why one row was refused: its place in the request, a JSON pointer, and the reason."""

    index: int
    pointer: str
    reason: str
    line: int | None = None

    def __post_init__(self) -> None:
        # A million rows may be refused: what is short is left as it is.
        if len(self.pointer) > MAX_TOLD or len(self.reason) > MAX_TOLD:
            object.__setattr__(self, "pointer", shortened(self.pointer))
            object.__setattr__(self, "reason", shortened(self.reason))

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
        detail = shortened(detail)
        super().__init__(detail)
        self.status = status
        self.slug = slug
        self.detail = detail
        self.errors = errors
        self.retry_after_s = retry_after_s
        self.extra = extra
        self.is_replayed = False
        """Whether it is the first answer of its request once more."""

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if "allow" in self.extra:
            headers["allow"] = self.extra["allow"]
        if self.status == 401:
            headers["www-authenticate"] = 'Bearer realm="dualstream"'
        if self.is_replayed:
            headers["idempotency-replayed"] = "true"
        return headers

    def body(self, instance: str) -> bytes:
        """The problem document for a request to the path `instance`."""
        return msgspec.json.encode(
            {
                "type": f"/problems/{self.slug}",
                "title": self.slug.replace("-", " ").capitalize(),
                "status": self.status,
                "detail": self.detail,
                "instance": shortened(instance),
                "errors": [error.as_dict() for error in self.errors[:MAX_ERRORS]],
                "error": self.detail,
                **self.extra,
            }
        )


def unknown_model(model: str) -> Problem:
    return Problem(404, "unknown-model", f"no model {quoted(model)}")


def unreadable(reason: str, is_journalled: bool = False) -> Problem:
    """For one model whose journal this version cannot read; others are served."""
    problem = Problem(503, "unreadable-journal", reason, retry_after_s=60)
    if is_journalled:
        problem.extra["outcome"] = "journalled"
    return problem


def unavailable(reason: str) -> Problem:
    return Problem(503, "store-unavailable", reason, retry_after_s=1)


def key_reused() -> Problem:
    """Of an Idempotency-Key under which something else was asked for."""
    detail = "the Idempotency-Key was used for another request"
    return Problem(422, "idempotency-key-reused", detail)

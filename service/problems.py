"""A refusal as clients see it: one shape for all, problem+json (RFC 9457).

{"type", "title", "status", "detail", "instance", "errors", "error"}; service.errors says which of
the exceptions of the layers below means which.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

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
                "instance": instance,
                "errors": [error.as_dict() for error in self.errors[:MAX_ERRORS]],
                "error": self.detail,
                **self.extra,
            }
        )

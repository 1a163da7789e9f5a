"""Error responses: problem documents (application/problem+json, RFC 9457).

Fields: type, title, status, detail, instance, errors, error, request_id. The module
service/http/exceptions_to_problems.py maps exceptions to problems.

A problem stays short, however long the request is: input is `quoted`, and details, reasons and
pointers are `shortened`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

MEDIA_TYPE = "application/problem+json"
# Maximum number of invalid rows listed in a response; `rejected` counts all.
MAX_ERRORS = 100
MAX_QUOTED = 128
"""Maximum characters of quoted input; a model's id is never longer."""
MAX_TEXT = 1000
"""Maximum characters of a detail, a reason or a pointer."""
_END = 200
_ELLIPSIS = "..."


def beginning(text: str) -> str:
    """The first MAX_QUOTED characters of a text."""
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + _ELLIPSIS


def quoted(value: object) -> str:
    """Python representation of a client's input, shortened to MAX_QUOTED characters."""
    if isinstance(value, str) and len(value) > MAX_QUOTED:
        return repr(value[:MAX_QUOTED]) + _ELLIPSIS
    return repr(value) if isinstance(value, str) else beginning(repr(value))


def shortened(text: str) -> str:
    """Cut the middle out of a text of more than MAX_TEXT characters."""
    return text if len(text) <= MAX_TEXT else text[:_END] + _ELLIPSIS + text[-_END:]


@dataclass(frozen=True, slots=True)
class RowError:
    """Error of one row: index in the request, JSON pointer, reason; line in line formats."""

    index: int
    pointer: str
    reason: str
    line: int | None = None

    def __post_init__(self) -> None:
        # Fast path: a request may have a million errors.
        if len(self.pointer) > MAX_TEXT or len(self.reason) > MAX_TEXT:
            object.__setattr__(self, "pointer", shortened(self.pointer))
            object.__setattr__(self, "reason", shortened(self.reason))

    def as_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "index": self.index,
            "pointer": self.pointer,
            "reason": self.reason,
        }
        if self.line is not None:
            document["line"] = self.line
        return document


class Problem(Exception):
    """Error response: `slug` names the kind, `detail` says what is wrong and what to do."""

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
        """Is this the repeated first response of an idempotent request?"""

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

    def body(self, instance: str, request_id: str | None = None) -> bytes:
        """Problem document for a request to the path `instance`, with a newline at its end."""
        named = {} if request_id is None else {"request_id": request_id}
        document = msgspec.json.encode(
            {
                "type": f"/problems/{self.slug}",
                "title": self.slug.replace("-", " ").capitalize(),
                "status": self.status,
                "detail": self.detail,
                "instance": shortened(instance),
                "errors": [error.as_dict() for error in self.errors[:MAX_ERRORS]],
                "error": self.detail,
                **named,
                **self.extra,
            }
        )
        return document + b"\n"

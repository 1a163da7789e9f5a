"""Audit log of models: who changed which model, how and when.

A write stores its change in the same atomic step: the log has the change exactly once if the write
was done, and not at all otherwise. Deleting a model keeps its changes.
"""

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from dualstream.wire.schemas import MODEL_ID

POSITION = re.compile(rf"(\d{{1,15}})-(\d{{1,15}})\.({MODEL_ID.pattern})")


class Change(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A change to a model and its author.

    action   `create`, `replace`, `delete`, `version`, ..., or the kind of a control
    by       `server` for changes without a request, such as those of a rule or a clean-up
    key      name of the API key of the request; None if the server has no keys
    key_id   first digits of the key's digest, as several keys may share a name
    detail   further JSON values; never a row, a label or a secret
    refusal  why the change was refused before it was made; it has no record then
    """

    action: str
    by: Literal["request", "server"] = "server"
    key: str | None = None
    key_id: str | None = None
    detail: dict[str, Any] = {}
    refusal: str | None = None


class Author(msgspec.Struct, frozen=True):
    """Author of a change: a request with its API key, or the server itself."""

    by: Literal["request", "server"]
    key: str | None = None
    key_id: str | None = None

    def change(self, action: str, **detail: Any) -> Change:
        """A change by this author."""
        return Change(action, self.by, self.key, self.key_id, detail)


ANONYMOUS = Author("request")
"""Author of requests to a server without API keys."""
SERVER = Author("server")
"""Author of changes that the server makes by itself."""


def describe_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a control for the audit log; a spec is replaced by its algorithm and digest."""
    described: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "spec":
            described |= describe_spec(value, msgspec.json.encode(value, order="sorted"))
        elif value is not None:
            described[name] = value
    return described


def describe_spec(spec: Mapping[str, Any], text: bytes) -> dict[str, Any]:
    """A spec's algorithm and the SHA-256 of its canonical JSON."""
    return {"algorithm": spec.get("algorithm"), "spec_sha256": hashlib.sha256(text).hexdigest()}


class AuditPosition(NamedTuple):
    """Position in the audit log, in the order of its fields.

    `number` distinguishes changes of the same millisecond.
    """

    time_ms: int
    number: int
    model: str

    def __str__(self) -> str:
        return f"{self.time_ms}-{self.number}.{self.model}"

    @classmethod
    def read(cls, text: str | None) -> "AuditPosition":
        """Parse a position; None is the start of the log. Raises ValueError."""
        match = POSITION.fullmatch(text or "0-0.0")
        if match is None:
            raise ValueError(f"{text!r} is not a position of the audit log")
        return cls(int(match[1]), int(match[2]), match[3])


class Audited(msgspec.Struct, frozen=True, gc=False):
    """A stored change.

    place    its position in this store's log, for `after`
    time_ms  the store's clock
    seq      the model's last seq at that time; for a control, the control's own seq
    """

    place: str
    time_ms: int
    model: str
    incarnation: str
    seq: int
    change: Change


def refused(model: str, incarnation: str, seq: int, change: Change, reason: str) -> Audited:
    """Entry for a change that was refused now, at a model's seq, before it had a record."""
    time_ms = time.time_ns() // 1_000_000
    position = str(AuditPosition(time_ms, 0, model))
    return Audited(position, time_ms, model, incarnation, seq, replace(change, refusal=reason))


class AuditLog(Protocol):
    """Audit log of a store. Changes are only appended; the oldest expire.

    A write with a `change` (`create`, `replace`, `delete`, `version_put`, `version_delete`,
    `append`) stores it in the same step. A write without effect and a repeated append store none.
    An append stores its change if it makes an entry or, when it has no parts, if it moves its
    cursor.
    """

    async def audit(
        self, model: str | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Audited]:
        """Return up to `limit` changes after the position `after`, oldest first.

        With `model`, the changes of every model that has had this id; otherwise of all models.
        Changes are kept for at least `Limits.audit_s`. For one model no acknowledged change is
        missing. In a Cluster, changes of different models are ordered by the clocks of their
        servers, so a change may appear shortly before the newest one read.

        Raises ValueError if `after` is not a position.
        """

    async def put_changes(self, changes: Sequence[Audited]) -> None:
        """Merge changes into the log, with their times; skip those that it already has.

        The given changes are in the order in which they were made. Later changes in the store may
        get new positions.
        """


encode_change = msgspec.json.encode
decode_change = msgspec.json.Decoder(Change).decode

"""The part of the journal's contract that is about who changed which model, and how.

What a write changes it tells in the same step: it is in the log if it was done, once, and not if it
was not. What belongs to a model in a store goes with it; its changes do not.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

MODEL_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
PLACE = re.compile(rf"(\d{{1,15}})-(\d{{1,15}})\.({MODEL_ID})")


class Change(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What is done to a model, and by whom.

    action   a word: `create`, `replace`, `delete`, `version`, ..., or the kind of a control
    by       `server` where nobody asked for it: what a rule or a clean-up does
    key      the name of the API key that was shown; None where none was asked for
    key_id   the first digits of its digest: several keys may have one name
    detail   what else there is to say, in JSON's types; no row, no label, no secret
    """

    action: str
    by: Literal["request", "server"] = "server"
    key: str | None = None
    key_id: str | None = None
    detail: dict[str, Any] = {}


class Author(msgspec.Struct, frozen=True):
    """Somebody who asked for a change, with the key that was shown; or the server by itself."""

    by: Literal["request", "server"]
    key: str | None = None
    key_id: str | None = None

    def change(self, action: str, **detail: Any) -> Change:
        """What this one does."""
        return Change(action, self.by, self.key, self.key_id, detail)


ANONYMOUS = Author("request")
"""Whoever asks a server that has no keys."""
SERVER = Author("server")


def describe_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a control, as far as they are told: of a spec which one it is."""
    told: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "spec":
            told |= describe_spec(value)
        elif value is not None:
            told[name] = value
    return told


def describe_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Which spec it is: its algorithm, and the digest of its canonical JSON."""
    text = msgspec.json.encode(spec, order="sorted")
    return {"algorithm": spec.get("algorithm"), "spec_sha256": hashlib.sha256(text).hexdigest()}


class AuditPosition(NamedTuple):
    """A place in the log, as it is ordered: when, a number that tells apart, which model."""

    time_ms: int
    number: int
    model: str

    def __str__(self) -> str:
        return f"{self.time_ms}-{self.number}.{self.model}"

    @classmethod
    def read(cls, told: str | None) -> "AuditPosition":
        """A place as it was told; None is before all. Raises ValueError."""
        of = PLACE.fullmatch(told or "0-0.0")
        if of is None:
            raise ValueError(f"{told} is no place of the log")
        return cls(int(of[1]), int(of[2]), of[3])


class Audited(msgspec.Struct, frozen=True, gc=False):
    """A change as the log keeps it.

    place    where it stands in the log, to be read on from; of no other one
    time_ms  the store's clock
    seq      where the model stood then: of a control its own place, else the last one there was
    """

    place: str
    time_ms: int
    model: str
    incarnation: str
    seq: int
    change: Change


class AuditLog(Protocol):
    """What a store promises of the log of changes: it only grows, and the oldest expire.

    A write that is given a `change` (`create`, `replace`, `delete`, `version_put`,
    `version_delete`, `append`) keeps it in the step in which it does what it is asked for. One that
    finds nothing to do keeps none; nor does the repetition of an append. An append keeps it if it
    makes an entry or, without parts, if it moves its cursor.
    """

    async def audit(
        self, model: str | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Audited]:
        """Return up to `limit` changes behind the place `after`, the oldest first.

        Of one model, by all who had its id, gone or there; or of all. They are kept for
        `Limits.audit_s` at least. Of one model nothing is left out that was acknowledged. In a
        store of several servers those of different models are in the order of these servers'
        clocks, so what comes within a moment of the newest may come before it.

        Raises ValueError for an `after` that is no place.
        """


encode_change = msgspec.json.encode
decode_change = msgspec.json.Decoder(Change).decode

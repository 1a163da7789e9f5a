"""Who changes a model, for the log of changes."""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dualstream.service.journal.audit import Change


class Author(msgspec.Struct, frozen=True):
    """Somebody who asked for a change, with the key that was shown; or the server by itself."""

    by: Literal["request", "server"]
    key: str | None = None
    key_id: str | None = None

    def change(self, action: str, **detail: Any) -> Change:
        """What this one does."""
        return Change(action, self.by, self.key, self.key_id, detail)


NOBODY = Author("request")
"""Whoever asks a server that has no keys."""
SERVER = Author("server")


def told_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a control, as far as they are told: of a spec which one it is."""
    told: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "spec":
            told |= told_of_spec(value)
        elif value is not None:
            told[name] = value
    return told


def told_of_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Which spec it is: its algorithm, and the digest of its canonical JSON."""
    text = msgspec.json.encode(spec, order="sorted")
    return {"algorithm": spec.get("algorithm"), "spec_sha256": hashlib.sha256(text).hexdigest()}

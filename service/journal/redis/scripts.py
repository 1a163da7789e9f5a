"""Lua scripts, loaded once; `common.lua` is prepended to each and describes the keys."""

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files

Argument = bytes | str | int


def pack(arguments: Sequence[Argument]) -> list[bytes]:
    """Encode arguments in the Redis protocol; large ones are not copied."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for argument in arguments:
        if not isinstance(argument, bytes):
            argument = str(argument).encode()
        if len(argument) > 1 << 14:
            small.append(b"$%d\r\n" % len(argument))
            pieces += (b"".join(small), argument)
            small = [b"\r\n"]
        else:
            small.append(b"$%d\r\n%b\r\n" % (len(argument), argument))
    pieces.append(b"".join(small))
    return pieces


class Script:
    """A script, packed for EVALSHA and for EVAL."""

    def __init__(self, name: str) -> None:
        folder = files(__package__) / "lua"
        parts = ("common.lua", f"{name}.lua")
        text = b"\n".join((folder / part).read_bytes() for part in parts)
        digest = sha1(text, usedforsecurity=False).hexdigest()
        self.packed_digest = pack((b"EVALSHA", digest))
        self.packed_text = pack((b"EVAL", text))


APPEND = Script("append")
AUDIT = Script("audit")
BASE = Script("base")
STATE_COPIES = Script("state_copies")
CURSOR = Script("cursor")
HEADS = Script("heads")
FIND_KEYS = Script("find_keys")
RATE_BUCKET = Script("rate_bucket")
MODELS = Script("models")
READ = Script("read")
PENDING_ROWS = Script("pending_rows")
SCRUB = Script("scrub")
SNAPSHOTS = Script("snapshots")
ARCHIVE_ACCESS = Script("archive_access")
TRIM = Script("trim")
USAGE = Script("usage")

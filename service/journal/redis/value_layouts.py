"""Binary layouts of Redis values; `lua/common.lua` lists the keys."""

from struct import Struct

import msgspec

from dualstream.service.journal.deduplicate import SkippedPart

MODELS = b"ds:models"
IDENTITY = b"ds:identity"
WAITING = b"ds:waiting"
AUDITED = b"ds:audited"

ENTRY = Struct("<QIIQ16s40s")
"""Header of an entry: first seq, records, bytes of the body, ms, nonce, chain."""
KNOWN = Struct("<QQ")
"""Start of a key's value: seq, records; ms and the fingerprint follow."""
TIME = Struct("<Q")
WAIT = Struct("<QQI")
"""Header of a pending row: ms stored, ms due, bytes of the default label."""


class Result(msgspec.Struct, array_like=True):
    """Stored result of an append, under its nonce."""

    before: int
    seq: int
    previous: str
    skipped: list[SkippedPart]


packed = msgspec.msgpack.encode
unpack_result = msgspec.msgpack.Decoder(Result).decode

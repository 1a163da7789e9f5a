"""What stands in Redis's values, as bytes; `entries.lua` says where, and the scripts read it."""

from struct import Struct

import msgspec

from dualstream.service.journal.deduplicate import SkippedPart

MODELS = b"ds:models"
IDENTITY = b"ds:identity"
WAITING = b"ds:waiting"
AUDITED = b"ds:audited"

ENTRY = Struct("<QIIQ16s40s")
"""In front of an entry's body: first seq, records, bytes of the body, ms, nonce, chain."""
KNOWN = Struct("<QQ")
"""In front of what stands under a key: seq, records; ms and the fingerprint follow."""
TIME = Struct("<Q")
WAIT = Struct("<QQI")
"""In front of a row that waits: ms remembered, ms due, bytes of the default label."""


class Result(msgspec.Struct, array_like=True):
    """What is kept under a nonce."""

    before: int
    seq: int
    previous: str
    left: list[SkippedPart]


packed = msgspec.msgpack.encode
unpack_result = msgspec.msgpack.Decoder(Result).decode

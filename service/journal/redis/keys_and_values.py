"""Redis key names and the binary layouts of values; `lua/common.lua` describes the content."""

from functools import lru_cache
from struct import Struct

import msgspec

from dualstream.service.journal.deduplicate import SkippedPart
from dualstream.service.journal.redis.scripts import pack


class Keys:
    """Key names of one model."""

    def __init__(self, model: str) -> None:
        self.prefix = f"ds:{{{model}}}:".encode()
        self.spec, self.head, self.log = (self.prefix + name for name in (b"spec", b"head", b"log"))
        self.keys = self.prefix + b"keys"
        self.snaps, self.cursors = self.prefix + b"snaps", self.prefix + b"cursors"
        rest = (b"nonces", b"nonceq", b"keys", b"keyq", b"cursors")
        of_append = (self.head, self.log, *(self.prefix + name for name in rest))
        names = (b"copies", b"versions", b"uses")
        self._of_copies = tuple(self.prefix + name for name in names)
        self.waits, self.waitq = self.prefix + b"waits", self.prefix + b"waitq"
        rows = (self.waits, self.waitq)
        self.bodies = self.prefix + b"bodies"
        self.all = (self.spec, *of_append, self.snaps, *self._of_copies, *rows, self.bodies)
        self.audit = self.prefix + b"audit"  # not in `all`: it outlives the model
        # Packed once, because every append sends them.
        self.count_of_append = len(of_append)
        self.packed_of_append = pack((len(of_append), *of_append))
        self.packed_of_change = pack((len(of_append) + 1, *of_append, self.audit))

    def body(self, nonce: bytes) -> bytes:
        return self.prefix + b"body:" + nonce

    def of_snapshot(self, token: str) -> tuple[bytes, ...]:
        return self.head, self.log, self.snaps, self.prefix + b"snap:" + token.encode()

    def of_copy(self, digest: str) -> tuple[bytes, ...]:
        own = self.prefix + b"copy:" + digest.encode()
        return self.head, *self._of_copies, own, self.audit


keys_of = lru_cache(4096)(Keys)

MODELS = b"ds:models"
IDENTITY = b"ds:identity"
PINGED = b"ds:pinged"
"""Written to check that the server accepts writes."""
WAITING = b"ds:waiting"
AUDITED = b"ds:audited"

ENTRY = Struct("<QIIQ16s40s")
"""Header of an entry: first seq, records, bytes of the body, ms, nonce, chain."""
KNOWN = Struct("<QQ")
"""Start of a key's value: seq, records; ms and the fingerprint follow."""
TIME = Struct("<Q")
WAIT = Struct("<QQI")
"""Header of a pending row: ms stored, ms due, bytes of the default label."""
LABELLED = 1 << 31
"""Added to the bytes of the label of a labelled row, whose seq is between header and label."""
ROW_SEQ = Struct("<Q")


class Result(msgspec.Struct, array_like=True):
    """Stored result of an append, under its nonce."""

    before: int
    seq: int
    previous: str
    skipped: list[SkippedPart]


packed = msgspec.msgpack.encode
unpack_result = msgspec.msgpack.Decoder(Result).decode

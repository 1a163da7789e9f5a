"""Nonces of appends, and the hash chain over them, which identifies an entry and all before it.

A nonce that this process made and has not used yet cannot be in any store. For such a nonce, SQLite
skips the look-up of an earlier answer.

A chain value is 40 lower-case hex characters. The first one is derived from the incarnation, which
contains a digest of the spec, so a chain value identifies the complete input of a state.
"""

import os
import secrets
import threading
from hashlib import sha1, sha256
from itertools import count

OWN_BYTES, NUMBER_BYTES = 10, 6
NONCE_BYTES = OWN_BYTES + NUMBER_BYTES
RECENT_NUMBERS = 1 << 14
"""Used numbers that are remembered exactly; lower numbers count as used."""
RANDOM = 32
"""Length of the random prefix of an incarnation; the digest of the spec follows."""


def new_incarnation(spec: bytes) -> str:
    """A new incarnation: random characters, then the digest of the spec."""
    return secrets.token_hex(RANDOM // 2) + digest_of(spec)


def is_of_spec(incarnation: str, spec: bytes) -> bool:
    """Is the incarnation compatible with this spec? Random-only incarnations match every spec."""
    return incarnation[RANDOM:] in ("", digest_of(spec))


def digest_of(spec: bytes) -> str:
    """First 16 hex characters of the SHA-256."""
    return sha256(spec).hexdigest()[:16]


def first_chain(incarnation: str) -> str:
    """The chain before a model's first entry."""
    return sha1(incarnation.encode(), usedforsecurity=False).hexdigest()


def next_chain(previous: str, nonce: bytes) -> str:
    """The chain after the entry with this nonce."""
    return sha1(previous.encode() + nonce, usedforsecurity=False).hexdigest()


class Nonces:
    """Makes nonces and detects their first use, within one process.

    A nonce is a random prefix, unique to the process, and a counter.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start again with a new prefix, as a new process does."""
        self._own = os.urandom(OWN_BYTES)
        self._numbers = count(1)
        self._used = set[int]()
        # Numbers up to this one count as used.
        self._known_after = 0
        self._lock = threading.Lock()

    def make(self) -> bytes:
        """Return 16 bytes that no other append carries."""
        return self._own + next(self._numbers).to_bytes(NUMBER_BYTES, "big")

    def is_first(self, nonce: bytes) -> bool:
        """Was the nonce made here and is this its first use? Marks it as used."""
        if nonce[:OWN_BYTES] != self._own:
            return False
        number = int.from_bytes(nonce[OWN_BYTES:], "big")
        with self._lock:
            if number <= self._known_after or number in self._used:
                return False
            self._used.add(number)
            if len(self._used) > RECENT_NUMBERS:
                self._known_after = sorted(self._used)[RECENT_NUMBERS // 2]
                self._used = {number for number in self._used if number > self._known_after}
        return True


OURS = Nonces()
# A forked child would make the same nonces.
os.register_at_fork(after_in_child=OURS.begin)

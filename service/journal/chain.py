"""Hash chain over a model's entries: identifies an entry and everything before it.

A chain value is 40 lower-case hex characters. The first one is derived from the incarnation, which
contains a digest of the spec, so a chain value identifies the complete input of a state.
"""

import secrets
from hashlib import sha1, sha256

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

"""The chain value: 40 lower-case hex characters that stand for an entry and all before it."""

from hashlib import sha1


def first_chain(incarnation: str) -> str:
    """The chain before a model's first entry."""
    return sha1(incarnation.encode(), usedforsecurity=False).hexdigest()


def next_chain(previous: str, nonce: bytes) -> str:
    """The chain after an entry with `nonce` that follows `previous`."""
    return sha1(previous.encode() + nonce, usedforsecurity=False).hexdigest()

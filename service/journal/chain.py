"""The chain value: 40 lower-case hex characters that stand for an entry and all before it.

What comes first is the model's incarnation, and that stands for the model's spec: so a chain value
stands for all that a state is made of.
"""

import secrets
from hashlib import sha1, sha256

RANDOM = 32
"""Characters of an incarnation that are random; what comes behind them is of the spec."""


def new_incarnation(spec: bytes) -> str:
    """What tells a model from all others that were made under its id, and its spec from others."""
    return secrets.token_hex(RANDOM // 2) + digest_of(spec)


def is_of_spec(incarnation: str, spec: bytes) -> bool:
    """Whether a model was made with this spec; one that is random alone does not tell."""
    return incarnation[RANDOM:] in ("", digest_of(spec))


def digest_of(spec: bytes) -> str:
    """16 hex characters."""
    return sha256(spec).hexdigest()[:16]


def first_chain(incarnation: str) -> str:
    """The chain before a model's first entry."""
    return sha1(incarnation.encode(), usedforsecurity=False).hexdigest()


def next_chain(previous: str, nonce: bytes) -> str:
    """The chain after an entry with `nonce` that follows `previous`."""
    return sha1(previous.encode() + nonce, usedforsecurity=False).hexdigest()

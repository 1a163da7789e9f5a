"""Durability levels: what survives of an acknowledged append after a failure.

Levels for a server's own disk are ordered: Redis `memory` < `everysec` < `always`, SQLite `normal`
< `full`. A higher level than requested is accepted. `replicated:N` means copies in the memory of N
replicas, ordered by N, and says nothing about disks. No server reports it, so the level applies
whenever it is requested.
"""

import re

REDIS_LEVELS = ("memory", "everysec", "always")
SQLITE_LEVELS = ("normal", "full")


def replicas_in(level: str | None) -> int:
    """Number of replicas that must have an append: the N of `replicated:N`, else 0."""
    match = re.fullmatch(r"replicated:([1-9][0-9]?)", level or "")
    return int(match[1]) if match else 0


def check_level(text: str) -> str:
    """Return the level if it is valid. Raises ValueError."""
    if text in (*REDIS_LEVELS, *SQLITE_LEVELS) or replicas_in(text):
        return text
    levels = ", ".join((*REDIS_LEVELS, "replicated:N", *SQLITE_LEVELS))
    raise ValueError(f"unknown durability {text!r}; use {levels} (N from 1 to 99)")

"""The levels of durability: what is left of an acknowledged append when something breaks.

What one server's disk keeps is ordered: Redis `memory` < `everysec` < `always`, SQLite `normal` <
`full`; more than was asked for is enough. `replicated:N` asks for something else, copies in the
memory of N replicas, and of disks for nothing: it is ordered among its own kind, by N. No server
tells that it is so, hence it holds where it is asked for.
"""

import re

REDIS_LEVELS = ("memory", "everysec", "always")
SQLITE_LEVELS = ("normal", "full")


def replicas_in(level: str | None) -> int:
    """How many replicas must hold an append: the N of `replicated:N`, else 0."""
    found = re.fullmatch(r"replicated:([1-9][0-9]?)", level or "")
    return int(found[1]) if found else 0


def check_level(text: str) -> str:
    """The level, if there is such a one. Raises ValueError."""
    if text in (*REDIS_LEVELS, *SQLITE_LEVELS) or replicas_in(text):
        return text
    known = ", ".join((*REDIS_LEVELS, "replicated:N", *SQLITE_LEVELS))
    raise ValueError(f"no durability {text!r}: known are {known} (N from 1 to 99)")

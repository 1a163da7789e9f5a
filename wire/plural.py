"""Counts with their noun in sentences."""


def plural(count: int, noun: str) -> str:
    """`1 row`, `2 rows`, `1,234 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

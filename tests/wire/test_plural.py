"""Counts with their noun."""

from dualstream.wire.plural import plural


def test_one_alone_is_singular():
    counts = [plural(count, "row") for count in (0, 1, 2, 1234)]
    assert counts == ["0 rows", "1 row", "2 rows", "1,234 rows"]

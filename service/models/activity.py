"""Times at which a model learned its rows, by the clock of this process. No part of the state."""

from array import array

MAX_POINTS = 256
FIRST_SPACING_S = 1.0


class Activity:
    """Rows learned at some moments since the model was loaded.

    rows, times  at most MAX_POINTS pairs of the rows learned and seconds since 1970, both in
                 increasing order: about one pair in `spacing` seconds, and the last record

    When the arrays are full, every second pair is dropped and the spacing doubles.
    """

    __slots__ = ("_spacing_s", "rows", "times")

    def __init__(self) -> None:
        self.rows, self.times = array("q"), array("d")
        self._spacing_s = FIRST_SPACING_S

    @property
    def last_at(self) -> float | None:
        """Time of the last record; None if none is known."""
        return self.times[-1] if self.times else None

    def saw(self, rows: int, now: float) -> None:
        """Note that the model has learned `rows` rows at the time `now`."""
        while self.rows and (self.rows[-1] > rows or self.times[-1] > now):
            self._drop_last()  # a rollback, or a clock that was set back
        if len(self.times) > 1 and now - self.times[-2] < self._spacing_s:
            self._drop_last()
        self.rows.append(rows)
        self.times.append(now)
        if len(self.rows) > MAX_POINTS:
            del self.rows[1::2], self.times[1::2]
            self._spacing_s *= 2.0

    def _drop_last(self) -> None:
        del self.rows[-1], self.times[-1]

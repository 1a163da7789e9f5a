"""What became of rows that were learned in several requests, or in several chunks of one."""

from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from dualstream.wire.problems import MAX_ERRORS
from dualstream.wire.schemas import Duplicate, Learned, LearnedStream


@dataclass(slots=True)
class Totals:
    """What has become of the chunks so far."""

    seq: int = 0
    rows: int = 0
    """Good and bad ones that were sent."""
    count: int = 0
    learned: int | None = 0
    mistakes: int | None = 0
    loss_sum: float = 0.0
    rejected: int | None = 0
    duplicate_rows: int = 0
    chunks: int = 0
    duplicate_chunks: int = 0
    is_new: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)

    def add(self, told: Learned, rows: int) -> None:
        """A chunk of so many rows that was acknowledged. What one does not tell, no sum does."""
        if told.learned is None or self.learned is None:
            self.learned = self.mistakes = self.rejected = None
        else:
            self.learned += told.learned
            self.loss_sum += told.loss * told.learned if told.loss is not None else 0.0
            self.mistakes = _sum(self.mistakes, told.mistakes)
            self.rejected = _sum(self.rejected, told.rejected)
        self.seq = max(self.seq, told.seq)
        self.rows += rows
        self.count += told.count
        self.chunks += 1
        self.duplicate_chunks += told.duplicate
        self.is_new |= told.count > 0 and not told.duplicate
        self.duplicate_rows += told.left_out()
        if told.errors is not UNSET:
            self.errors += told.errors[: MAX_ERRORS - len(self.errors)]

    def add_at(self, told: Learned, rows: int, line: int = 0) -> None:
        """As `add`; the places that are told count over all from now on, lines from `line`."""
        if told.errors is not UNSET:
            for error in told.errors:
                error["index"] += self.rows
                if "line" in error:
                    error["line"] += line
        if told.duplicates is not UNSET:
            told.duplicates = [
                Duplicate(found.index + self.rows, found.seq) for found in told.duplicates
            ]
        self.add(told, rows)

    def told(self, model_id: str) -> LearnedStream:
        """The sums."""
        learned = self.learned
        return LearnedStream(
            model=model_id,
            seq=self.seq,
            count=self.count,
            learned=learned,
            mistakes=self.mistakes,
            loss=self.loss_sum / learned if learned else None,
            rejected=self.rejected,
            duplicate=not self.is_new,
            errors=self.errors or UNSET,
            chunks=self.chunks,
            duplicate_chunks=self.duplicate_chunks,
            duplicate_rows=self.duplicate_rows,
        )


def _sum(so_far: int | None, more: int | None) -> int | None:
    return None if so_far is None or more is None else so_far + more

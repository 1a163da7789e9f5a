"""Sums of learn responses over chunks or requests."""

from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from dualstream.wire.problem_json import MAX_ERRORS
from dualstream.wire.schemas import Duplicate, Learned, LearnedStream


@dataclass(slots=True)
class Totals:
    """Sums over the chunks so far. A field is None if a chunk does not report it."""

    seq: int = 0
    rows: int = 0
    """Rows sent, valid and invalid."""
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
    warnings: list[str] = field(default_factory=list)
    """Those of the first chunk that has any."""

    def add(self, answer: Learned, rows: int) -> None:
        """Add the response to a chunk of `rows` rows."""
        if answer.learned is None or self.learned is None:
            self.learned = self.mistakes = self.rejected = None
        else:
            self.learned += answer.learned
            self.loss_sum += answer.loss * answer.learned if answer.loss is not None else 0.0
            self.mistakes = _sum(self.mistakes, answer.mistakes)
            self.rejected = _sum(self.rejected, answer.rejected)
        self.seq = max(self.seq, answer.seq)
        self.rows += rows
        self.count += answer.count
        self.chunks += 1
        self.duplicate_chunks += answer.duplicate
        self.is_new |= answer.count > 0 and not answer.duplicate
        self.duplicate_rows += answer.left_out()
        if answer.errors is not UNSET:
            self.errors += answer.errors[: MAX_ERRORS - len(self.errors)]
        if answer.warnings is not UNSET:
            self.warnings = self.warnings or answer.warnings

    def add_at(self, answer: Learned, rows: int, line: int = 0) -> None:
        """As `add`; row indices in the response count over all chunks, lines from `line`."""
        if answer.errors is not UNSET:
            for error in answer.errors:
                error["index"] += self.rows
                if "line" in error:
                    error["line"] += line
        if answer.duplicates is not UNSET:
            answer.duplicates = [
                Duplicate(one.index + self.rows, one.seq) for one in answer.duplicates
            ]
        self.add(answer, rows)

    def result(self, model_id: str) -> LearnedStream:
        """The sums as a response."""
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
            warnings=self.warnings or UNSET,
            chunks=self.chunks,
            duplicate_chunks=self.duplicate_chunks,
            duplicate_rows=self.duplicate_rows,
        )


def _sum(so_far: int | None, more: int | None) -> int | None:
    return None if so_far is None or more is None else so_far + more

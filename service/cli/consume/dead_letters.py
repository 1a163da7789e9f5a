"""Dead letters: messages that are no rows, or that the server refused, with the reason."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dualstream.service.cli.consume.reader import Message

SHOWN = 5
"""Dead letters of a batch that the log shows."""


class DeadLetter(NamedTuple):
    """A message and why it is not learned."""

    message: Message
    reason: str


class DeadLetters(Protocol):
    """A dead-letter queue."""

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Write durably. Raises OSError to be called again later."""
        ...


class LoggedLetters:
    """Logs the first dead letters of each batch, with their offsets."""

    def __init__(self, log: Callable[[str], None], shown: int = SHOWN) -> None:
        self._log, self._shown = log, shown

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Log them."""
        for message, reason in letters[: self._shown]:
            self._log(f"refused: {message.source} offset {message.offset}: {reason}")
        if len(letters) > self._shown:
            self._log(f"refused: {len(letters) - self._shown} more of this batch")

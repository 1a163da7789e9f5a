"""Dead letters: messages that are no rows, or that the server refused, with the reason."""

import base64
import fcntl
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from dualstream.client import BadInput
from dualstream.consume.reader import Message

SHOWN = 5
"""Dead letters of a batch that the log shows."""
PAUSED = "paused: "
"""Reason of a row in quarantine, which is learned or dropped when the model is resumed."""


class DeadLetter(NamedTuple):
    """A message and why it is not learned."""

    message: Message
    reason: str


def reasons(errors: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Index and reason of refused rows of an answer, with the field that is wrong."""
    pairs = []
    for one in errors:
        field = str(one.get("pointer", "")).partition(f"/{one['index']}")[2].removeprefix("/")
        pairs.append((int(one["index"]), f"{field}: {one['reason']}" if field else one["reason"]))
    return pairs


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
            self._log(f"refused: {message.source} offset {message.position}: {reason}")
        if len(letters) > self._shown:
            self._log(f"refused: {len(letters) - self._shown} more of this batch")


class FileLetters:
    """Appends dead letters to a file, one JSON object per line. Raises BadInput at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with self._open() as file:
                is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        except OSError as wrong:
            raise BadInput(
                f"--dead-letter {path}: cannot write the file: {wrong.strerror}"
            ) from None
        if not is_regular:  # a pipe or a device cannot be synced
            raise BadInput(f"--dead-letter {path}: a pipe or a device; choose a regular file")

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Append them with one write, and sync the file. A failed write leaves the file as it was.

        Several processes may append to the file.
        """
        lines = b"".join(msgspec.json.encode(_document(letter)) + b"\n" for letter in letters)
        with self._open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                lines = b"\n" + lines  # a process was killed while it wrote
            try:
                if file.write(lines) != len(lines):
                    raise OSError(f"{self._path}: the file system is full")
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise

    def _open(self) -> FileIO:
        return FileIO(self._path, "ab+")


def _document(letter: DeadLetter) -> dict[str, Any]:
    message, reason = letter
    document: dict[str, Any] = {
        "source": message.source,
        "offset": message.position,
        "reason": reason,
    }
    if message.timestamp_ms is not None:
        document["timestamp"] = datetime.fromtimestamp(message.timestamp_ms / 1000, UTC)
    pairs = [
        _texts("name", name.encode(errors="surrogateescape")) | _texts("value", value)
        for name, value in message.headers
    ]
    if message.id is not None:
        return document | {"fields": pairs}
    document |= _texts("key", message.key) | _texts("value", message.value)
    return document | ({"headers": pairs} if pairs else {})


def _texts(name: str, value: bytes | None) -> dict[str, str | None]:
    """The value as a text, or in base64 as NAME_base64 if it is not UTF-8."""
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}

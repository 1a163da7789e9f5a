"""strace of a process: its writes and syncs of files and sockets, in order.

And the content of the disk after a power cut: all that was synced, and a seeded choice of the rest.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

UNPACKED = Path(__file__).parents[2] / ".cache" / "strace"
"""Where tests/fetch_tool.sh strace puts Debian's packages."""
CALLS = "write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,fsync,fdatasync,sync_file_range"
CALLS += ",ftruncate,rename,renameat,renameat2,unlink,unlinkat"
SYNCS = ("fsync", "fdatasync")
SECTOR = 4096
"""What of a write gets to the disk as one, or not at all."""

_BEGINS = re.compile(r"(\d+) +(\w+)\((.*)")
_RESUMES = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")
_TARGET = re.compile(r"\d+<((?:[^>\\]|\\x..|->)*)>")
_BYTES = re.compile(r'"((?:\\x..)*)"')
_AT = re.compile(r", (\d+), (\d+)\) += (\d+)$")
_LENGTH = re.compile(r", (\d+)")
_RESULT = re.compile(r" = (-?\d+)")


@dataclass(frozen=True)
class Event:
    """One successful call.

    at offset of a write in the file, None at its end; of `ftruncate` the length that it sets
    """

    call: str
    target: str
    data: bytes = b""
    at: int | None = None

    @property
    def is_answer(self) -> bool:
        """Bytes that leave the process."""
        return self.target.startswith("TCP:")


@contextmanager
def traced(pids: Sequence[int], log: Path, fails: str = "") -> Iterator[None]:
    """Trace processes and their threads; skips the test where tracing is not allowed.

    With `fails`, calls of these names fail with EIO.
    """
    program, environment = _program()
    options = ["-f", "-yy", "-xx", "-s", "4194304", "-e", f"trace={CALLS}"]
    if fails:
        options = ["-f", "-e", f"trace={fails}", "-e", f"inject={fails}:error=EIO"]
    tracer = subprocess.Popen(
        [program, *options, "-o", str(log), *(f"--attach={pid}" for pid in pids)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    try:
        for _ in pids:
            said = tracer.stderr.readline()
            if "attached" not in said:
                pytest.skip(f"strace may not trace here: {said.strip()}")
        yield
    finally:
        tracer.terminate()
        tracer.wait(timeout=30)
        tracer.stderr.close()


def _program() -> tuple[str, dict[str, str]]:
    result = shutil.which("strace")
    if result:
        return result, dict(os.environ)
    unpacked = UNPACKED / "usr" / "bin" / "strace"
    if not unpacked.exists():
        reason = "no strace: run tests/fetch_tool.sh strace, or install it"
        if os.environ.get("CI"):
            raise RuntimeError(reason)
        pytest.skip(reason)
    libraries = ":".join(str(path) for path in (UNPACKED / "usr" / "lib").glob("*-linux-gnu"))
    return str(unpacked), os.environ | {"LD_LIBRARY_PATH": libraries}


def events(log: Path) -> list[Event]:
    """Calls in order: answers by their begin, all others by their return."""
    results: list[Event] = []
    begun: dict[str, str] = {}
    for line in log.read_text().splitlines():
        if match := _RESUMES.match(line):
            thread, call, rest = match.groups()
            whole = begun.pop(thread) + rest
        elif match := _BEGINS.match(line):
            thread, call, whole = match.groups()
            if whole.endswith(" <unfinished ...>"):
                begun[thread] = whole.removesuffix(" <unfinished ...>")
                event = _event(call, begun[thread])
                if event is not None and event.is_answer:
                    results.append(event)
                continue
        else:
            continue
        event = _event(call, whole)
        if event is None or (event.is_answer and _RESUMES.match(line)):
            continue
        if event.is_answer and whole.endswith(" <detached ...>"):
            results.append(event)  # the trace ended between its begin and its return
            continue
        _, ends, got = whole.rpartition(")")
        if not ends:
            continue  # it had not returned at the end of the trace
        result = _RESULT.search(got)
        if result is not None and int(result[1]) >= 0:
            results.append(event)
    return results


def _event(call: str, whole: str) -> Event | None:
    target = _TARGET.match(whole)
    if target is None:
        raise ValueError(f"{call} is not expected of a store: {whole[:200]}")
    path = _unescaped(target[1]).decode()
    if call in SYNCS:
        return Event(call, path)
    if call == "ftruncate":
        length = _LENGTH.match(whole, target.end())
        return Event(call, path, at=int(length[1]) if length else None)
    data = b"".join(_unescaped(piece[1]) for piece in _BYTES.finditer(whole, target.end()))
    at = _AT.search(whole) if call == "pwrite64" else None
    return Event(call, path, data, int(at[2]) if at else None)


def _unescaped(text: str) -> bytes:
    """Bytes of a string in which strace writes some as `\\x0a`."""

    def bytes_of(escaped: re.Match[bytes]) -> bytes:
        return bytes.fromhex(escaped[0].replace(b"\\x", b"").decode())

    return re.sub(rb"(?:\\x..)+", bytes_of, text.encode("latin-1"))


class Disk:
    """Files with their synced content, and later writes.

    files path -> content
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self._synced = {path: bytearray(content) for path, content in files.items()}
        self._lengths = {path: len(content) for path, content in files.items()}
        self._unsynced: dict[str, list[tuple[int, bytes]]] = {path: [] for path in files}

    @classmethod
    def of(cls, paths: Sequence[Path]) -> "Disk":
        return cls({str(path): path.read_bytes() for path in paths})

    def holds(self, mark: bytes) -> bool:
        """Are these bytes synced?"""
        return any(mark in content for content in self._synced.values())

    def see(self, event: Event) -> None:
        """Record a call on one of the files."""
        if event.target not in self._synced:
            return
        writes = self._unsynced[event.target]
        if event.call in SYNCS:
            for at, data in writes:
                _put(self._synced[event.target], at, data)
            writes.clear()
        elif event.call == "ftruncate":
            # SQLite does this after each full checkpoint, to the present length.
            if event.at != self._lengths[event.target]:
                raise ValueError(f"{event.target} gets another length: not modelled")
        else:
            at = self._lengths[event.target] if event.at is None else event.at
            writes.append((at, event.data))
            self._lengths[event.target] = max(self._lengths[event.target], at + len(event.data))

    def after_cut(self, chance: Random, in_order: bool) -> dict[str, bytes]:
        """Files as a power cut may leave them.

        in_order a first part of the unsynced writes survives; else any sectors of them
        """
        left = {}
        for path, synced in self._synced.items():
            content = bytearray(synced)
            writes = self._unsynced[path]
            if in_order:
                keep = chance.randint(0, sum(len(data) for _, data in writes))
                for at, data in writes:
                    _put(content, at, data[:keep])
                    keep = max(0, keep - len(data))
            else:
                share = chance.choice((0.0, 0.5, 0.9))
                for at, data in writes:
                    for begin in range(0, len(data), SECTOR):
                        if chance.random() < share:
                            _put(content, at + begin, data[begin : begin + SECTOR])
            left[path] = bytes(content)
        return left


def _put(content: bytearray, at: int, data: bytes) -> None:
    if not data:
        return
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data

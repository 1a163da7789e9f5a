"""Archive format: checksummed sections, documented byte by byte in docs/operate/archive.md."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from struct import Struct
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec
from google_crc32c import extend

from dualstream.service.journal.protocol import ModelRecord

MAGIC = b"dualstream archive 1\n"
HEAD = Struct("<4sQ")
CHECKSUM = Struct("<I")
END = Struct("<Q32s")

ARCHIVE, MODEL, COPY, USES, ENTRIES = b"ARCH", b"MODL", b"COPY", b"USES", b"ENTR"
VERSIONS, SNAPSHOTS, KEYS, ROWS = b"VERS", b"SNAP", b"KEYS", b"ROWS"
VOID, CHANGES, LAST = b"VOID", b"AUDT", b"LAST"
KINDS = {ARCHIVE, MODEL, COPY, USES, ENTRIES, VERSIONS, SNAPSHOTS, KEYS, ROWS, VOID, CHANGES, LAST}

T = TypeVar("T", bound=msgspec.Struct)


class DamagedArchive(Exception):
    """The archive is truncated or damaged, or the file is no archive; the message says where."""


class Opening(msgspec.Struct, frozen=True):
    """Content of the first section: a whole store or one model, and when the dump began."""

    is_store: bool
    created_ms: int


class StoredModel(msgspec.Struct, frozen=True):
    """First section of a model. `trimmed` is the last seq that is not kept."""

    record: ModelRecord
    trimmed: int
    cursors: Mapping[str, str]
    identity: str | None


@lru_cache
def _decoder(of: type[T]) -> msgspec.msgpack.Decoder[list[T]]:
    return msgspec.msgpack.Decoder(list[of])  # type: ignore[valid-type]


class Section(NamedTuple):
    """A section that was read and whose checksum was verified."""

    kind: bytes
    payload: bytes
    number: int
    at: int

    def __str__(self) -> str:
        return f"section {self.number} ({self.kind.decode()}) at byte {self.at}"

    def rows(self, of: type[T]) -> list[T]:
        """Decode the payload as rows. Raises DamagedArchive."""
        try:
            return _decoder(of).decode(self.payload)
        except msgspec.MsgspecError as error:
            raise DamagedArchive(f"{self}: {error}") from error

    def row(self, of: type[T]) -> T:
        """Decode the payload as exactly one row. Raises DamagedArchive."""
        rows = self.rows(of)
        if len(rows) != 1:
            raise DamagedArchive(f"{self}: expected one row, found {len(rows)}")
        return rows[0]


class ArchiveWriter:
    """Writes an archive to a file object; does not seek."""

    def __init__(self, file: BinaryIO, opening: Opening) -> None:
        self._file = file
        self._crc, self._digest = 0, hashlib.sha256()
        self.count = 0  # of sections
        self._put(MAGIC)
        self.add(ARCHIVE, opening)

    def add(self, kind: bytes, *rows: msgspec.Struct) -> None:
        """Write a section with these rows."""
        self.add_bytes(kind, msgspec.msgpack.encode(rows))

    def add_bytes(self, kind: bytes, payload: bytes) -> None:
        """Write a section with these bytes."""
        self._put(HEAD.pack(kind, len(payload)))
        self._put_checksum()
        self._put(payload)
        self._put_checksum()
        self.count += 1

    def end(self) -> None:
        """Write the last section; an archive without it is truncated."""
        self.add_bytes(LAST, END.pack(self.count, self._digest.digest()))
        self._file.flush()

    def _put(self, data: bytes) -> None:
        self._crc = extend(self._crc, data)
        self._write(data)

    def _put_checksum(self) -> None:
        # Excluded from the CRC: a CRC over its own value would no longer depend on earlier bytes.
        self._write(CHECKSUM.pack(self._crc))

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


class ArchiveReader:
    """Reads an archive from a file object; does not seek."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at, self._crc, self._digest = 0, 0, hashlib.sha256()

    def __iter__(self) -> Iterator[Section]:
        """Yield every section but the last one, which is only verified. Raises DamagedArchive."""
        if self._take(len(MAGIC), "the first line") != MAGIC:
            raise DamagedArchive(f"byte 0: not an archive of version 1 (expected {MAGIC!r})")
        number = 0
        while True:
            at, digest = self._at, self._digest.digest()
            name = f"section {number} at byte {at}"
            kind, size = HEAD.unpack(self._take(HEAD.size, name))
            self._check(name)
            if kind not in KINDS:
                raise DamagedArchive(f"{name}: unknown type {kind!r}; a newer version wrote it")
            section = Section(kind, b"", number, at)
            payload = self._take(size, str(section))
            self._check(str(section))
            if kind == LAST:
                break
            yield section._replace(payload=payload)
            number += 1
        if payload != END.pack(number, digest):
            raise DamagedArchive(f"{section}: it does not match the sections before it")
        if self._file.read(1):
            raise DamagedArchive(f"byte {self._at}: data after the last section")

    def _take(self, size: int, name: str) -> bytes:
        data = self._read(size, name)
        self._crc = extend(self._crc, data)
        return data

    def _check(self, name: str) -> None:
        at = self._at
        [checksum] = CHECKSUM.unpack(self._read(CHECKSUM.size, name))
        if checksum != self._crc:
            raise DamagedArchive(f"{name} is damaged: the checksum at byte {at} does not match")

    def _read(self, size: int, name: str) -> bytes:
        data = self._file.read(size)
        self._at += len(data)
        self._digest.update(data)
        if len(data) < size:
            raise DamagedArchive(f"{name} is truncated: the file ends at byte {self._at}")
        return data

"""Decompression of request bodies (gzip, zstd), streaming, up to a size limit.

Output is counted as it is produced, so a decompression bomb is refused after one piece beyond the
limit.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

from dualstream.wire.problem_json import Problem

# zstd returns all output of its input at once, and 4 bytes can expand to 128 KiB. So the input is
# fed in small slices, which grow while the output stays small.
_ZSTD_MIN_SLICE, _ZSTD_MAX_SLICE = 16, 128
_ZSTD_HEAD = 18
"""Maximum bytes of a frame header."""
_GZIP_SLICE = 64 * 1024
_PIECE = 256 * 1024
"""Output per step above which slices stay small, so that other requests do not wait."""
# Maximum window of zstd over HTTP (RFC 9659).
_WINDOW = 8 * 1024 * 1024


class _Stream(Protocol):
    """Decompressor of one gzip member or one zstd frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


class Inflating:
    """Streaming decompressor of one body: call `pieces` per chunk, then `finish`.

    Raises Problem 400 for damaged data, 413 for more than `limit` bytes of output.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = encoding
        self._limit = limit
        self._size = 0
        self._pieces_of, self._min_slice, self._max_slice = _ENCODINGS[encoding]
        self._slice = self._min_slice
        self._open: list[_Stream] = []

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Decompress the next bytes piece by piece; the caller must exhaust the iterator."""
        start = 0
        try:
            while start < len(chunk):
                stop, so_far = start + self._slice, self._size
                for piece in self._pieces_of(chunk[start:stop], self._open):
                    self._size += len(piece)
                    if self._size > self._limit:
                        detail = f"the body has more than {self._limit} bytes when decompressed"
                        raise Problem(413, "body-too-large", detail)
                    yield piece
                is_dense = self._size - so_far >= _PIECE
                self._slice = self._min_slice if is_dense else min(2 * self._slice, self._max_slice)
                start = stop
        except (zlib.error, zstandard.ZstdError) as error:
            raise self._malformed(f"is damaged: {error}") from None

    def finish(self) -> None:
        """End of the body. Raises Problem 400 if it is truncated."""
        if not self._open or not self._open[0].eof:
            raise self._malformed("is truncated")

    def _malformed(self, reason: str) -> Problem:
        return Problem(400, "malformed-body", f"the {self._encoding} body {reason}")


def _gzip_pieces(chunk: bytes, opened: list[_Stream]) -> Iterator[bytes]:
    """Decompress concatenated members; `opened` holds the current one."""
    while True:
        if not opened or opened[0].eof:
            opened[:] = [zlib.decompressobj(wbits=31)]
        stream: zlib._Decompress = opened[0]  # type: ignore[assignment]
        piece = stream.decompress(chunk, _PIECE)
        yield piece
        chunk = stream.unused_data if stream.eof else stream.unconsumed_tail
        if not chunk and (stream.eof or len(piece) < _PIECE):
            return


class _Frame:
    """One zstd frame. Checks the content size in its header.

    The library checks it only if the frame arrives in one piece.
    """

    def __init__(self) -> None:
        inflater = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        self._stream = inflater.decompressobj()
        self._head = b""
        self._size = 0

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, chunk: bytes) -> bytes:
        self._head += chunk[: _ZSTD_HEAD - len(self._head)]
        piece = self._stream.decompress(chunk)
        self._size += len(piece)
        if self.eof and zstandard.frame_content_size(self._head) not in (-1, self._size):
            raise zstandard.ZstdError(
                f"a frame has {self._size} bytes, but its header states another size"
            )
        return piece


def _zstd_pieces(chunk: bytes, opened: list[_Stream]) -> Iterator[bytes]:
    """Decompress concatenated frames; `opened` holds the current one."""
    while chunk:
        if not opened or opened[0].eof:
            opened[:] = [_Frame()]
        stream: _Frame = opened[0]  # type: ignore[assignment]
        yield stream.decompress(chunk)
        chunk = stream.unused_data


_Pieces = Callable[[bytes, list[_Stream]], Iterator[bytes]]
_ENCODINGS: dict[str, tuple[_Pieces, int, int]] = {
    "gzip": (_gzip_pieces, _GZIP_SLICE, _GZIP_SLICE),
    "zstd": (_zstd_pieces, _ZSTD_MIN_SLICE, _ZSTD_MAX_SLICE),
}
"""Encoding -> decompressor, and the minimum and maximum bytes of input per step."""


def content_encoding(header: str) -> str | None:
    """Encoding of a Content-Encoding header; None without one. Raises Problem 415."""
    name = header.strip().lower()
    name = "gzip" if name == "x-gzip" else name
    if name in ("", "identity"):
        return None
    if name not in _ENCODINGS:
        accepted = " or ".join(_ENCODINGS)
        detail = f"content encoding {header!r} is not accepted, send {accepted}"
        raise Problem(415, "unsupported-media-type", detail)
    return name

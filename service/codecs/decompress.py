"""Content encodings: compressed bodies to what they hold, piece by piece, up to a limit.

What comes out is counted as it comes, so that a small body of a huge one is refused before it is
unpacked, and no more than one piece is held beyond the limit.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

from dualstream.wire.problems import Problem

# zstd hands out whatever its input holds at once, and its densest block makes 128 KiB of 4 bytes:
# so few bytes are given to it at a time, and more of them as long as little comes out.
_ZSTD_SLICE, _ZSTD_MOST = 16, 128
_ZSTD_HEAD = 18
"""Bytes of the longest head of a frame."""
_GZIP_SLICE = 64 * 1024
_PIECE = 256 * 1024
"""What is much to come out at once: others are not to wait for more."""
# Senders over HTTP use no larger window (RFC 9659).
_WINDOW = 8 * 1024 * 1024


class _Stream(Protocol):
    """One member of gzip, or one frame of zstd."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


class Inflating:
    """A compressed body on its way in: `feed` it, or take its `pieces`, then `finish`.

    Raises Problem 400, and 413 where more than `limit` bytes come out.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = encoding
        self._limit = limit
        self._size = 0
        self._pieces_of, self._least, self._most = _ENCODINGS[encoding]
        self._slice = self._least
        self._open: list[_Stream] = []

    def feed(self, chunk: bytes) -> bytes:
        """What the next bytes of the body hold."""
        return b"".join(self.pieces(chunk))

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """What the next bytes of the body hold, little by little; to be gone through to its end."""
        start = 0
        try:
            while start < len(chunk):
                stop, so_far = start + self._slice, self._size
                for piece in self._pieces_of(chunk[start:stop], self._open):
                    self._size += len(piece)
                    if self._size > self._limit:
                        detail = f"the body inflates to more than {self._limit} bytes"
                        raise Problem(413, "body-too-large", detail)
                    yield piece
                is_dense = self._size - so_far >= _PIECE
                self._slice = self._least if is_dense else min(2 * self._slice, self._most)
                start = stop
        except (zlib.error, zstandard.ZstdError) as error:
            raise self._malformed(f"is damaged: {error}") from None

    def finish(self) -> None:
        """The body has ended. Raises Problem 400 where it is cut short."""
        if not self._open or not self._open[0].eof:
            raise self._malformed("ends too early")

    def _malformed(self, reason: str) -> Problem:
        return Problem(400, "malformed-body", f"the {self._encoding} body {reason}")


def _gzip_pieces(chunk: bytes, opened: list[_Stream]) -> Iterator[bytes]:
    """Of members one behind the other; the last one met is left in `opened`."""
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
    """One frame of zstd; whether it holds as much as it says the library does not always look at.

    It does when a frame comes in one piece, and how one comes must not matter.
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
            raise zstandard.ZstdError(f"a frame holds {self._size} bytes, and says otherwise")
        return piece


def _zstd_pieces(chunk: bytes, opened: list[_Stream]) -> Iterator[bytes]:
    """Of frames one behind the other; the last one met is left in `opened`."""
    while chunk:
        if not opened or opened[0].eof:
            opened[:] = [_Frame()]
        stream: _Frame = opened[0]  # type: ignore[assignment]
        yield stream.decompress(chunk)
        chunk = stream.unused_data


_Pieces = Callable[[bytes, list[_Stream]], Iterator[bytes]]
_ENCODINGS: dict[str, tuple[_Pieces, int, int]] = {
    "gzip": (_gzip_pieces, _GZIP_SLICE, _GZIP_SLICE),
    "zstd": (_zstd_pieces, _ZSTD_SLICE, _ZSTD_MOST),
}
"""How each is taken apart, and how many bytes of it at a time: at least, and at most."""


def content_encoding(header: str) -> str | None:
    """The encoding that a Content-Encoding header names, None for none. Raises Problem 415."""
    name = header.strip().lower()
    name = "gzip" if name == "x-gzip" else name
    if name in ("", "identity"):
        return None
    if name not in _ENCODINGS:
        accepted = " or ".join(_ENCODINGS)
        detail = f"content encoding {header!r} is not accepted, send {accepted}"
        raise Problem(415, "unsupported-media-type", detail)
    return name

"""Buffer of received pieces; bytes are copied only when joined."""

Piece = bytes | memoryview


class ChunkBuffer:
    """Bytes not chunked yet. Offsets count from the first byte in the buffer."""

    __slots__ = ("_pieces", "size")

    def __init__(self, *pieces: Piece) -> None:
        self._pieces = list(pieces)
        self.size = sum(map(len, pieces))

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        self._pieces.append(piece)
        self.size += len(piece)

    def between(self, begin: int, end: int) -> Piece:
        """Bytes from `begin` to before `end`, as far as present."""
        views = self._views(begin, end)
        return views[0] if len(views) == 1 else b"".join(views)

    def joined(self) -> bytes:
        """Join all bytes to one piece."""
        if len(self._pieces) != 1 or not isinstance(self._pieces[0], bytes):
            self._pieces = [b"".join(self._pieces)]
        whole = self._pieces[0]
        assert isinstance(whole, bytes)
        return whole

    def drop(self, count: int) -> None:
        """Remove the first `count` bytes."""
        self._pieces = self._views(count, self.size)
        self.size -= count

    def take(self, count: int, before: bytes = b"") -> bytes:
        """Remove and return the first `count` bytes, prefixed with `before`."""
        views = self._views(0, count)
        self.drop(count)
        if len(views) == 1 and not before and isinstance(views[0], bytes):
            return views[0]
        return b"".join([before, *views])

    def later_have(self, text: bytes) -> bool:
        """Does any piece but the first contain this byte?"""
        return any(text in bytes(piece) for piece in self._pieces[1:])

    def _views(self, begin: int, end: int) -> list[Piece]:
        """Parts of the pieces between two offsets; whole pieces are not copied."""
        views: list[Piece] = []
        at = 0
        for piece in self._pieces:
            first, last = max(begin - at, 0), min(end - at, len(piece))
            if first < last:
                is_whole = last - first == len(piece)
                views.append(piece if is_whole else memoryview(piece)[first:last])
            at += len(piece)
        return views

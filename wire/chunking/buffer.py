"""Bytes that came in pieces and were not cut yet: no byte is copied before somebody needs it."""

Piece = bytes | memoryview


class ChunkBuffer:
    """They count from 0, wherever in the body they stand."""

    __slots__ = ("_pieces", "size")

    def __init__(self, *pieces: Piece) -> None:
        self._pieces = list(pieces)
        self.size = sum(map(len, pieces))

    def add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self.size += len(piece)

    def between(self, begin: int, end: int) -> Piece:
        """Those from `begin` to before `end`, as far as they are there."""
        views = self._views(begin, end)
        return views[0] if len(views) == 1 else b"".join(views)

    def joined(self) -> bytes:
        """All of them, which lie in one piece then."""
        if len(self._pieces) != 1 or not isinstance(self._pieces[0], bytes):
            self._pieces = [b"".join(self._pieces)]
        whole = self._pieces[0]
        assert isinstance(whole, bytes)
        return whole

    def drop(self, count: int) -> None:
        """Let go of the first ones."""
        self._pieces = self._views(count, self.size)
        self.size -= count

    def take(self, count: int, before: bytes = b"") -> bytes:
        """Let go of the first ones, and return them behind what stands `before` them."""
        views = self._views(0, count)
        self.drop(count)
        if len(views) == 1 and not before and isinstance(views[0], bytes):
            return views[0]
        return b"".join([before, *views])

    def later_have(self, text: bytes) -> bool:
        """Whether `text`, which is one byte, is in a piece behind the first."""
        return any(text in bytes(piece) for piece in self._pieces[1:])

    def _views(self, begin: int, end: int) -> list[Piece]:
        """The parts of pieces between these, the whole ones as they are."""
        found: list[Piece] = []
        at = 0
        for piece in self._pieces:
            first, last = max(begin - at, 0), min(end - at, len(piece))
            if first < last:
                is_whole = last - first == len(piece)
                found.append(piece if is_whole else memoryview(piece)[first:last])
            at += len(piece)
        return found

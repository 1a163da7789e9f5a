"""Page of entries from one read, parsed lazily: its last seq and size are known before parsing."""

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from dualstream.service.journal.protocol import ENTRY_OVERHEAD, Entry


class Page(Sequence[Entry]):
    """At least one entry, parsed on first access.

    end    last seq of the page
    size   bytes, counted as in `Journal.read`
    parse  makes the entries; raises CorruptRecord on first access
    """

    __slots__ = ("_parse", "_parsed", "end", "size")

    def __init__(self, end: int, size: int, parse: Callable[[], list[Entry]]) -> None:
        self.end, self.size = end, size
        self._parse = parse
        self._parsed: list[Entry] | None = None

    def _entries(self) -> list[Entry]:
        if self._parsed is None:
            self._parsed = self._parse()
            del self._parse  # frees the raw answer
        return self._parsed

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._entries())

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        return self._entries()[at]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries())


def end_of(entries: Sequence[Entry]) -> int:
    """The last seq of entries that were read; does not parse a `Page`."""
    return entries.end if isinstance(entries, Page) else entries[-1].seq


def size_of(entries: Sequence[Entry]) -> int:
    """Bytes of entries that were read; does not parse a `Page`."""
    if isinstance(entries, Page):
        return entries.size
    return sum([len(entry.body) + ENTRY_OVERHEAD for entry in entries])

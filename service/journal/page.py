"""Entries as a store has answered them: where they end is known before they are parsed."""

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from dualstream.service.journal.protocol import ENTRY_OVERHEAD, Entry


class Page(Sequence[Entry]):
    """Entries of one answer, at least one, parsed when somebody looks at them.

    end    the last seq among them
    size   what they count for, as `Journal.read` counts
    parse  makes them; raises CorruptRecord, to whoever looks
    """

    __slots__ = ("_parse", "_parsed", "end", "size")

    def __init__(self, end: int, size: int, parse: Callable[[], list[Entry]]) -> None:
        self.end, self.size = end, size
        self._parse = parse
        self._parsed: list[Entry] | None = None

    def _entries(self) -> list[Entry]:
        if self._parsed is None:
            self._parsed = self._parse()
            del self._parse  # and with it the answer
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
    """The last seq among entries that were read, without a look at those of a `Page`."""
    return entries.end if isinstance(entries, Page) else entries[-1].seq


def size_of(entries: Sequence[Entry]) -> int:
    """What entries that were read count for, without a look at those of a `Page`."""
    if isinstance(entries, Page):
        return entries.size
    return sum([len(entry.body) + ENTRY_OVERHEAD for entry in entries])

"""What an append does with its parts, the same on every store.

A store answers with the seq before its entry and with the exceptions (parts left out, and what
they duplicate); `placed` makes the places from these, at once or for a repeated nonce.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from service.journal._format import OPENING_KINDS, KeyKind
from service.journal.protocol import Known, Part, Placed

NONCE_BYTES = 16


class Left(NamedTuple):
    """A part that was left out: its number in the group and what stands under its key."""

    part: int
    seq: int
    records: int
    is_conflict: bool


def opens_request(part: Part) -> bool:
    """Whether the part carries the key of a whole request."""
    return part.key is not None and part.key[0] in OPENING_KINDS


def check_parts(nonce: bytes, parts: Sequence[Part]) -> bool:
    """Check what the contract asks of a group; return whether any part has a key.

    Raises ValueError.
    """
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
    if len(parts) == 1:  # as most do, and mostly without a key
        part = parts[0]
        if part.key is None and part.count > 0 and not part.continues:
            return False
    has_keys = is_open = False
    for number, part in enumerate(parts):
        if part.key is None and part.count > 0 and not part.continues:
            is_open = False
            continue
        has_keys = has_keys or part.key is not None
        if not part.continues:
            is_open = opens_request(part)
        elif not is_open or opens_request(part):
            raise ValueError(f"part {number} continues no request with a key")
        if part.count < (0 if opens_request(part) else 1):
            raise ValueError(f"part {number} is empty and opens no request")
    return has_keys


def requests(parts: Sequence[Part]) -> Iterator[tuple[int, int]]:
    """The requests of a group as (first part, part after the last one)."""
    start = 0
    for number in range(1, len(parts) + 1):
        if number == len(parts) or not parts[number].continues:
            yield start, number
            start = number


class Sorting:
    """Which parts of a group are new; filled by `sort`.

    kept   the bodies that make the entry     left  the parts left out
    keys   what to keep under which key       seq   the last one given
    labels the keys of its labels, whether new or known: no row waits for them any more
    """

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.kept: list[bytes] = []
        self.left: list[Left] = []
        self.keys: dict[bytes, Known] = {}
        self.labels: list[bytes] = []

    def sort(self, parts: Sequence[Part], known: Callable[[bytes], Known | None]) -> None:
        """Go through the group; `known` looks up what the store keeps under a key."""
        for start, stop in requests(parts):
            opening = parts[start]
            if not opens_request(opening):
                for number in range(start, stop):
                    self._take(number, parts[number], known)
                continue
            assert opening.key is not None
            found = self.keys.get(opening.key) or known(opening.key)
            if found is None:
                self._take_request(start, parts[start:stop], known)
            else:
                for number in range(start, stop):
                    self._leave(number, opening, found)

    def _take_request(
        self, start: int, parts: Sequence[Part], known: Callable[[bytes], Known | None]
    ) -> None:
        opening, before, kept = parts[0], self.seq, len(self.kept)
        self.kept.append(opening.body)
        self.seq += opening.count
        is_accepted = opening.count > 0
        for number, part in enumerate(parts[1:], start + 1):
            is_accepted |= self._take(number, part, known)
        if self.seq == before:
            del self.kept[kept:]
        if is_accepted:
            assert opening.key is not None
            self.keys[opening.key] = Known(self.seq, self.seq - before, opening.fingerprint)

    def _take(self, number: int, part: Part, known: Callable[[bytes], Known | None]) -> bool:
        """Take a part unless its own key is known; return False when it is in conflict."""
        if part.key is not None:
            if part.key[0] == KeyKind.LABEL:
                self.labels.append(part.key)
            found = self.keys.get(part.key) or known(part.key)
            if found is not None:
                return self._leave(number, part, found)
            self.keys[part.key] = Known(self.seq + part.count, part.count, part.fingerprint)
        self.seq += part.count
        self.kept.append(part.body)
        return True

    def _leave(self, number: int, part: Part, found: Known) -> bool:
        is_conflict = part.fingerprint != found.fingerprint
        self.left.append(Left(number, found.seq, found.records, is_conflict))
        return not is_conflict


def placed(parts: Sequence[Part], before: int, left: Sequence[Left]) -> tuple[Placed, ...]:
    """Where each part stands, given the seq before the entry and the parts left out."""
    places: list[Placed] = []
    seq = before
    if not left:
        for part in parts:
            places.append(Placed(seq + 1, seq + part.count, part.count))
            seq += part.count
        return tuple(places)
    exceptions = {number: found for number, *found in left}
    for number, part in enumerate(parts):
        if number in exceptions:
            last, records, is_conflict = exceptions[number]
            first = last - records + 1
            places.append(Placed(first, last, records, not is_conflict, bool(is_conflict)))
        else:
            places.append(Placed(seq + 1, seq + part.count, part.count))
            seq += part.count
    return tuple(places)

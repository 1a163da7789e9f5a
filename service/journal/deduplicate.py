"""Deduplication of the parts of an append: in SQLite, and the parts' positions of every store.

A store returns the seq before the new entry and the skipped parts. `part_positions` computes each
part's seqs from these, for a first append and for a repeated nonce alike.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dualstream.service.journal.chain import NONCE_BYTES
from dualstream.service.journal.protocol import KeyEntry, NewPendingRow, Part, PartPosition
from dualstream.service.journal.record.format import OPENING_KINDS, KeyKind


class RowLabel(NamedTuple):
    """Label of a labelled row with what is stored behind it, and the seq of its record."""

    label: bytes
    seq: int


class SkippedPart(NamedTuple):
    """A part that is not journalled: its number in the group, and the stored value of its key."""

    part: int
    seq: int
    records: int
    is_conflict: bool


def opens_request(part: Part) -> bool:
    """Does the part carry the key of a whole request?"""
    return part.key is not None and part.key[0] in OPENING_KINDS


def check_parts(nonce: bytes, parts: Sequence[Part]) -> bool:
    """Validate the parts of a group; return whether deduplication can skip any of them.

    That is the case if a part has a key or opens an all-or-nothing request. Raises ValueError.
    """
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
    may_skip = is_open = is_whole = False
    for number, part in enumerate(parts):
        if _stands_alone(part):
            is_open = False
            continue
        if part.pending is not None and part.pending.key != part.key:
            raise ValueError(f"part {number} has another key than its pending row")
        is_whole = is_whole if part.continues else part.whole
        if part.revisable is not None and is_whole:
            raise ValueError(f"part {number} has a revisable label in an all-or-nothing request")
        may_skip = may_skip or part.key is not None or part.whole
        if not part.continues:
            is_open = part.whole or opens_request(part)
        elif not is_open or part.whole or opens_request(part):
            raise ValueError(f"part {number} continues a request that no earlier part opens")
        if part.count < (0 if opens_request(part) else 1):
            raise ValueError(f"part {number} is empty; only a part with a request's key may be")
    return may_skip


def _stands_alone(part: Part) -> bool:
    """Is the part made of rows without a key that are always journalled?"""
    is_plain = part.key is None and part.count > 0 and not part.continues and not part.whole
    return is_plain and part.pending is None


def requests(parts: Sequence[Part]) -> Iterator[tuple[int, int]]:
    """Index ranges (first part, one past the last) of the requests of a group."""
    start = 0
    for number in range(1, len(parts) + 1):
        if number == len(parts) or not parts[number].continues:
            yield start, number
            start = number


class Deduplication:
    """Splits the parts of a group into new and skipped ones.

    kept    bodies of the new entry           skipped  parts that are not journalled
    keys    values to store under new keys    seq      last seq assigned
    pending rows to store, by key     labels  keys of labels, new or known; waiting rows with these
                                              keys are deleted, also those to store
    relabelled  labels of rows that stay stored, by key; set before rows are deleted
    """

    def __init__(
        self,
        seq: int,
        is_pending: Callable[[bytes], bool],
        row_label: Callable[[bytes], RowLabel | None],
    ) -> None:
        """`is_pending` looks up whether a row is stored under a key, `row_label` the label of a
        labelled one."""
        self.seq = seq
        self._is_pending, self._row_label = is_pending, row_label
        self.kept: list[bytes] = []
        self.skipped: list[SkippedPart] = []
        self.keys: dict[bytes, KeyEntry] = {}
        self.pending: dict[bytes, NewPendingRow] = {}
        self.labels: list[bytes] = []
        self.relabelled: dict[bytes, RowLabel] = {}

    def process(self, parts: Sequence[Part], find: Callable[[bytes], KeyEntry | None]) -> None:
        """Process the group; `find` finds the stored value of a key."""
        for start, stop in requests(parts):
            opening = parts[start]
            entry = None
            if opens_request(opening):
                assert opening.key is not None
                entry = self.keys.get(opening.key) or find(opening.key)
            elif not opening.whole:  # it stands alone
                self._take(start, opening, find)
                continue
            if entry is None:
                self._take_request(start, parts[start:stop], find)
            else:
                for number in range(start, stop):
                    self._skip(number, opening, entry)

    def _take_request(
        self, start: int, parts: Sequence[Part], find: Callable[[bytes], KeyEntry | None]
    ) -> None:
        opening = parts[0]
        request = Deduplication(
            self.seq,
            lambda key: key in self.pending or self._is_pending(key),
            lambda key: self.relabelled.get(key) or self._row_label(key),
        )
        is_accepted = False
        if opens_request(opening):
            request.kept.append(opening.body)
            request.seq += opening.count
            is_accepted = opening.count > 0 or len(parts) == 1
            start, parts = start + 1, parts[1:]
        for number, part in enumerate(parts, start):
            is_accepted |= request._take(number, part, lambda key: self.keys.get(key) or find(key))
        conflicts = [one for one in request.skipped if one.is_conflict]
        if opening.whole and conflicts:
            # A conflict with another row of the same request gets an empty position, as that row
            # is not journalled either.
            self.skipped += [
                one if one.seq <= self.seq else SkippedPart(one.part, self.seq, 0, True)
                for one in conflicts
            ]
            return
        self.keys |= request.keys
        self.pending |= request.pending
        self.relabelled |= request.relabelled
        if is_accepted and opens_request(opening):
            assert opening.key is not None
            count = request.seq - self.seq
            last = request.seq if count else last_known(request.skipped, request.seq)
            self.keys[opening.key] = KeyEntry(last, count, opening.fingerprint)
        if request.seq > self.seq:
            self.kept += request.kept
        self.skipped += request.skipped
        self.labels += request.labels
        self.seq = request.seq

    def _take(self, number: int, part: Part, find: Callable[[bytes], KeyEntry | None]) -> bool:
        """Keep a part unless its own key is known; return False if it is in conflict."""
        if part.pending is not None:
            return self._take_pending(number, part, part.pending, find)
        if part.key is not None:
            if part.key[0] == KeyKind.LABEL and part.revisable is None:
                self.labels.append(part.key)
            entry = self._earlier(part, part.key, self.keys.get(part.key) or find(part.key))
            if entry is not None:
                return self._skip(number, part, entry)
            last = self.seq + part.count
            self.keys[part.key] = KeyEntry(last, part.count, part.fingerprint)
            if part.revisable is not None:
                label = part.revisable.label + part.revisable.earlier
                self.relabelled[part.key] = RowLabel(label, last)
        self.seq += part.count
        self.kept.append(part.body)
        return True

    def _earlier(self, part: Part, key: bytes, entry: KeyEntry | None) -> KeyEntry | None:
        """The value because of which a part is skipped, or None; `entry` is that of its key."""
        revisable = part.revisable
        if revisable is None:
            return entry
        row = self.relabelled.get(key) or self._row_label(key)
        if row is None:
            return entry or (KeyEntry(self.seq, 0, None) if revisable.replaces else None)
        is_same = row.label.startswith(revisable.label)
        seq = revisable.seq if revisable.seq > 0 else self.seq + part.count + revisable.seq
        if row == (revisable.replaces, seq) and not is_same:
            return None
        return KeyEntry(row.seq, 1, part.fingerprint if is_same else None)

    def _take_pending(
        self, number: int, part: Part, row: NewPendingRow, find: Callable[[bytes], KeyEntry | None]
    ) -> bool:
        """Keep a part with a pending row unless its label is known or a row is stored already."""
        entry = self.keys.get(row.key) or find(row.key)
        if entry is not None:
            self.skipped.append(SkippedPart(number, entry.seq, entry.records, False))
        elif row.key in self.pending or self._is_pending(row.key):
            self.skipped.append(SkippedPart(number, self.seq, 0, False))
        else:
            self.pending[row.key] = row
            self.seq += part.count
            self.kept.append(part.body)
        return True

    def _skip(self, number: int, part: Part, entry: KeyEntry) -> bool:
        is_conflict = part.fingerprint != entry.fingerprint
        self.skipped.append(SkippedPart(number, entry.seq, entry.records, is_conflict))
        return not is_conflict


def last_known(skipped: Sequence[SkippedPart], seq: int) -> int:
    """The seq of a request without new rows: of its last known row, or `seq` without any."""
    return max((one.seq for one in skipped if not one.is_conflict), default=seq)


def part_positions(
    parts: Sequence[Part], before: int, skipped: Sequence[SkippedPart]
) -> tuple[PartPosition, ...]:
    """Position of each part, given the seq before the entry and the skipped parts."""
    positions: list[PartPosition] = []
    seq = before
    if not skipped:
        for part in parts:
            positions.append(PartPosition(seq + 1, seq + part.count, part.count))
            seq += part.count
        return tuple(positions)
    exceptions = {one.part: one for one in skipped}
    for start, stop in requests(parts):
        is_refused = _is_refused(parts, start, stop, exceptions)
        for number in range(start, stop):
            exception, count = exceptions.get(number), parts[number].count
            if exception is not None:
                last, is_conflict = exception.seq, bool(exception.is_conflict)
                first = last - exception.records + 1
                is_known = not is_conflict
                positions.append(
                    PartPosition(first, last, exception.records, is_known, is_conflict, is_refused)
                )
            elif is_refused:
                positions.append(PartPosition(seq + 1, seq, 0, refused=True))
            else:
                positions.append(PartPosition(seq + 1, seq + count, count))
                seq += count
    return tuple(positions)


def _is_refused(
    parts: Sequence[Part], start: int, stop: int, exceptions: Mapping[int, SkippedPart]
) -> bool:
    """Does an all-or-nothing request have a part, other than its own key, in conflict?"""
    opening = parts[start]
    if not opening.whole or (opens_request(opening) and start in exceptions):
        return False
    refused = [exceptions[number] for number in range(start, stop) if number in exceptions]
    return any([one.is_conflict for one in refused])

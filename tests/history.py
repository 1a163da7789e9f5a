"""History checker: what clients were answered, against the journal and the state.

A test or benchmark collects the answers with status 200. Afterwards `check_history` reads the
model's whole journal. Tags match rows with acknowledgements: the key of a request, else the id of a
sample, or what `tags_of` finds in the rows (an index or a weight chosen by the client).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dualstream.service.journal.chain import first_chain, next_chain
from dualstream.service.journal.protocol import Entry, Journal
from dualstream.service.journal.record import Control, Header, RecordError, Rows, decode_merged

Tags = Callable[[Rows], Sequence[Hashable]]


class HistoryBroken(AssertionError):
    """Acknowledged rows are lost or duplicated, or the journal is damaged."""

    def __init__(self, report: "Report") -> None:
        shown = "\n".join(report.problems[:20])
        super().__init__(f"{len(report.problems)} problems:\n{shown}")
        self.report = report


@dataclass(frozen=True)
class Acknowledged:
    """An answer: the last seq and the number of rows journalled for `tag`."""

    tag: Hashable
    seq: int
    count: int = 1


@dataclass
class Report:
    """Result of a check. Clients never saw the answers to `unacknowledged` rows."""

    entries: int = 0
    rows: int = 0
    controls: int = 0
    acknowledged: int = 0
    unacknowledged: int = 0
    seq: int = 0
    chain: str = ""
    problems: list[str] = field(default_factory=list)


async def read_all(journal: Journal, model: str, incarnation: str, after: int = 0) -> list[Entry]:
    """All entries after a seq."""
    entries: list[Entry] = []
    while page := await journal.read(model, incarnation, after):
        entries += page
        after = page[-1].seq
    return entries


async def check_history(
    journal: Journal,
    model: str,
    acknowledged: Iterable[Acknowledged],
    *,
    tags_of: Tags | None = None,
    sent: Mapping[Hashable, int] | None = None,
    samples: int | None = None,
    rejected: int = 0,
) -> Report:
    """Check a model's whole journal against its clients' answers and its state.

        sent      number of rows sent under each tag; other tags, or more rows, are an error
        samples   rows that the state has learned; `rejected` were journalled and not learned

    Raises HistoryBroken.
    """
    record = await journal.get(model)
    entries = await read_all(journal, model, record.incarnation)
    report = check_entries(
        entries,
        record.incarnation,
        acknowledged,
        tags_of=tags_of,
        sent=sent,
        samples=samples,
        rejected=rejected,
    )
    if (report.seq, report.chain) != (record.seq, record.chain):
        report.problems.append(f"the head is {record.seq} {record.chain}, which is not the end")
        raise HistoryBroken(report)
    return report


def check_entries(
    entries: Sequence[Entry],
    incarnation: str,
    acknowledged: Iterable[Acknowledged],
    *,
    tags_of: Tags | None = None,
    sent: Mapping[Hashable, int] | None = None,
    samples: int | None = None,
    rejected: int = 0,
) -> Report:
    """`check_history` for entries that are already read."""
    report = Report(entries=len(entries), chain=first_chain(incarnation))
    tags: list[Hashable] = []
    for entry in entries:
        _check_place(report, entry)
        tags += _tags_of_entry(report, entry, tags_of)
    answers = _check_answers(report, acknowledged, tags)
    counts = Counter(tag for tag in tags if tag is not None)
    report.unacknowledged = report.rows - sum(counts[tag] for tag in answers)
    if sent is not None:
        report.problems += [
            f"{tag!r} was sent {sent.get(tag, 0)} times and journalled {count} times"
            for tag, count in counts.items()
            if count > sent.get(tag, 0)
        ]
    if samples is not None and samples + rejected != report.rows:
        report.problems.append(
            f"{report.rows} rows journalled, {samples} learned and {rejected} rejected"
        )
    if report.problems:
        raise HistoryBroken(report)
    return report


def _check_place(report: Report, entry: Entry) -> None:
    if entry.first_seq != report.seq + 1:
        report.problems.append(f"after seq {report.seq} comes {entry.first_seq}")
    if entry.seq < entry.first_seq:
        report.problems.append(f"the entry at {entry.first_seq} ends at {entry.seq}")
    if entry.chain != next_chain(report.chain, entry.nonce):
        report.problems.append(f"the chain is broken at seq {entry.seq}")
    report.seq, report.chain = entry.seq, entry.chain


def _tags_of_entry(report: Report, entry: Entry, tags_of: Tags | None) -> list[Hashable]:
    """The tag of each record of an entry, None where it has none."""
    expected = entry.seq - entry.first_seq + 1
    try:
        headers, blocks = decode_merged(entry.body)
    except RecordError as error:
        report.problems.append(f"the entry at seq {entry.seq} cannot be read: {error}")
        return [None] * expected
    report.rows += sum(len(block) for block in blocks if isinstance(block, Rows))
    report.controls += sum(isinstance(block, Control) for block in blocks)
    tags = _tags_by_key(headers) if tags_of is None else _tags_by_row(blocks, tags_of)
    if len(tags) != expected:
        report.problems.append(f"the entry at seq {entry.seq} holds {len(tags)} records")
    return [*tags, *[None] * expected][:expected]


def _tags_by_key(headers: Sequence[Header]) -> list[Hashable]:
    tags: list[Hashable] = []
    request: Hashable = None
    for header in headers:
        mine = None if header.key is None else header.key[1:].decode()
        if not header.continues:
            request = mine
        tags += [request] * header.count
    return tags


def _tags_by_row(blocks: Sequence[Rows | Control], tags_of: Tags) -> list[Hashable]:
    tags: list[Hashable] = []
    for block in blocks:
        tags += tags_of(block) if isinstance(block, Rows) else [None]
    return tags


def _check_answers(
    report: Report, acknowledged: Iterable[Acknowledged], tags: Sequence[Hashable]
) -> dict[Hashable, Acknowledged]:
    """Each answer's rows are at its seqs and nowhere else; returns the answers by tag."""
    counts = Counter(tags)
    answers: dict[Hashable, Acknowledged] = {}
    for answer in acknowledged:
        previous = answers.setdefault(answer.tag, answer)
        if previous != answer:
            report.problems.append(f"{answer.tag!r} was answered {previous} and {answer}")
    for answer in answers.values():
        report.acknowledged += answer.count
        stands = list(tags[max(answer.seq - answer.count, 0) : answer.seq])
        if stands != [answer.tag] * answer.count:
            report.problems.append(f"lost: {answer} is not there")
        if counts[answer.tag] > answer.count:
            report.problems.append(
                f"duplicated: {answer.tag!r} is journalled {counts[answer.tag]} times,"
                f" acknowledged {answer.count} times"
            )
    return answers

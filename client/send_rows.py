"""Requests that send rows to a model: samples, tables, files, and batches of a source."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from dualstream.client import rows
from dualstream.client.arrow_tables import TableBodies, bodies_of_table
from dualstream.client.calls import (
    JSON,
    NDJSON,
    Call,
    Next,
    Steps,
    model_path,
    new_key,
    query_of,
    with_key,
)
from dualstream.client.errors import BadInput, NoRows, Refused
from dualstream.client.method import Methods, bodies_ahead, check_table
from dualstream.client.progress_bar import OnProgress, Progress
from dualstream.client.resumable_files import Piece, RowFile, is_cursor, read_ahead
from dualstream.client.row_values import sample_line
from dualstream.wire.changes import SourceList
from dualstream.wire.chunking.chunks import CHUNK_BYTES
from dualstream.wire.plural import plural
from dualstream.wire.schemas import Learned, LearnedStream, SourceNext
from dualstream.wire.sources import HEADER, Offset, Source, check_name
from dualstream.wire.totals import Totals

LEARN, OBSERVE = "learn", "observe"


class Target(NamedTuple):
    """A route that takes rows, and whether its responses have scores."""

    model: str
    action: str = LEARN
    scores: bool = False

    def keyed(self, kind: str, body: bytes, key: str) -> Call[Learned]:
        """Request under an idempotency key."""
        # `learn` splits a longer body into chunks, and answers with the sum of theirs.
        is_split = self.action == LEARN and len(body) > CHUNK_BYTES and kind != JSON
        return self._call(kind, body, with_key(key), LearnedStream if is_split else Learned)

    def batch(self, kind: str, body: bytes, source: Source) -> Call[Learned]:
        """Request that is a batch of a source. Raises BadInput."""
        try:
            header = source.header()
        except ValueError as wrong:
            raise BadInput(str(wrong)) from None
        return self._call(kind, body, {HEADER: header}, Learned)

    def piece(self, file: RowFile, piece: Piece) -> Call[Learned]:
        """Request of a chunk of a file."""
        if file.source is None:
            return self.keyed(file.sent_as, piece.content, piece.key)
        first = piece.start == 0
        batch = Source(file.source, piece.cursor, next=piece.next_cursor, first=first)
        return self.batch(file.sent_as, piece.content, batch)

    def _call(
        self, kind: str, body: bytes, headers: Mapping[str, str], answer: Any
    ) -> Call[Learned]:
        path, query = model_path(self.model, self.action), query_of(scores=self.scores)
        return Call("POST", path, answer, query, {"content-type": kind, **headers}, body)

    def sent(self, answer: Learned) -> int:
        """Rows of a request, by its response. Observed rows are not in `learned`."""
        return answer.sent() + (answer.count if self.action == OBSERVE else 0)


class RowMethods(Methods):
    """What the methods that learn and observe have in common."""

    def _send(
        self,
        to: Target,
        x: Any,
        y: Any,
        weight: Any,
        ids: Any,
        names: Sequence[str] | None,
        key: str | None,
        rows_per_request: int,
        source: Source | str | None,
        offset: int,
    ) -> Steps[Learned]:
        """Send rows of any type, see `learn`."""
        if source is not None and key is not None:
            raise BadInput("give either a key or a source")
        if offset and not isinstance(source, str):
            raise BadInput("an offset needs the name of a source: source='NAME'")
        if offset < 0:
            raise BadInput(f"the offset must be 0 or more, got {offset}")
        if isinstance(source, str) or rows.is_table(x):
            check_table(x, y=y, weight=weight, ids=ids, names=names)
            if isinstance(source, str):
                bodies = bodies_of_table(x)
                bodies.row = offset
                return (yield from self._send_source(to, bodies, source))
            if source is not None:
                raise BadInput("the source of a table is a name: source='NAME'")
            return (yield from self._send_bodies(to, bodies_ahead(x), key))
        if source is not None:
            if rows.is_single(x):
                body = sample_line(rows.sample(rows.row_of(x, names), y, weight, ids))
                return (yield from self._do(to.batch(JSON, body, source)))
            body = rows.body_of(rows.samples_of(x, y, weight, ids, names))
            return (yield from self._do(to.batch(NDJSON, body, source)))
        if rows.is_single(x):
            nested: list[str] = []
            body = sample_line(rows.sample(rows.row_of(x, names), y, weight, ids), nested=nested)
            yield from self._check_nested(to.model, nested)
            one = to._replace(scores=False)  # it has its score anyway
            return (yield from self._do(one.keyed(JSON, body, key or new_key())))
        lines = rows.bodies_of(rows.samples_of(x, y, weight, ids, names), rows_per_request)
        return (yield from self._send_bodies(to, Next(lines), key))

    def _send_file(
        self, to: Target, file: RowFile, skip: int, on_progress: OnProgress | None
    ) -> Steps[LearnedStream]:
        """Send the chunks of a file, see `learn_file`."""
        totals, count, empty = Totals(), 0, 0
        cursor = (yield from self._cursor(to.model, file.source)) if file.source else None
        pieces = Next(read_ahead(file.pieces(cursor)), reads_file=True)
        while (piece := (yield pieces)) is not None:
            count += 1
            if piece.number < skip:
                continue
            try:
                learned = yield from self._do(to.piece(file, piece))
            except Refused as refused:
                if refused.kind == "idempotency-key-reused":
                    raise _file_changed(file, piece, refused) from None
                if refused.has_no_rows:
                    empty += 1
                    continue
                if refused.kind != "invalid-rows" or not totals.seq:
                    raise
                learned = _all_rejected(to.model, refused, totals.seq)
            if file.source and not (piece.start or learned.count) and learned.rejected:
                raise _no_good_row(to.model, file, learned)
            totals.add_at(learned, to.sent(learned), piece.line)
            if on_progress is not None:
                on_progress(Progress(totals.rows, learned, piece))
        if count == empty and cursor is None:
            raise NoRows(f"{file.name}: the file has no rows")
        if count < skip:
            raise BadInput(
                f"{file.name}: cannot skip {plural(skip, 'chunk')}; the file has {count}"
            )
        return totals.result(to.model)

    def _cursor(self, model: str, source: str) -> Steps[str | None]:
        """The cursor of a source that is a file. Raises BadInput for a name too long, and for a
        cursor that no file has."""
        try:
            check_name(source)
        except ValueError as wrong:
            raise BadInput(f"{source}: {wrong}; send the file with --key") from None
        call = Call[SourceList]("GET", model_path(model, "sources"), SourceList)
        sources = (yield from self._do(call)).sources
        cursor = next((one.next for one in sources if one.name == source), None)
        if cursor is None:
            return None
        if not is_cursor(cursor):
            raise BadInput(
                f"the cursor of the source {source} is not that of a file; to send the file again,"
                f" first run {_how_to_forget(model, source)}"
            )
        return str(cursor)

    def _send_bodies(
        self, to: Target, bodies: Next, key: str | None, on_progress: OnProgress | None = None
    ) -> Steps[LearnedStream]:
        """Send bodies under the keys KEY:0, KEY:1, ...; returns the sum of the responses.

        Raises Refused if no row is valid, BadInput if there are no rows.
        """
        key, totals, all_scores = key or new_key(), Totals(), list[float | None]()
        first: Refused | None = None
        number = 0
        has_columns = False
        while (body := (yield bodies)) is not None:
            if body.nested is not None and not has_columns:
                yield from self._check_nested(to.model, [body.nested])
                has_columns = True
            try:
                call = to.keyed(body.kind, body.content, f"{key}:{number}")
                learned = yield from self._do(call)
            except Refused as refused:
                if refused.kind != "invalid-rows":
                    raise
                first = first or refused
                learned = _all_rejected(to.model, refused, totals.seq)
            number += 1
            sent = totals.rows + body.rows
            totals.add_at(learned, body.rows)
            all_scores += learned.scores or [None] * body.rows
            if on_progress is not None:
                on_progress(Progress(sent, learned))
        if not totals.rows:
            raise BadInput("there are no rows to send")
        if not totals.seq and first is not None:
            raise first
        summed = totals.result(to.model)
        summed.scores = all_scores if to.scores else UNSET
        return summed

    def _send_source(self, to: Target, bodies: TableBodies, name: str) -> Steps[LearnedStream]:
        """Send bodies as batches of a source, from its cursor; returns the sum of the responses.

        The first body finds the cursor, which is in the response even if nothing is learned.
        """
        totals, all_scores = Totals(), list[float | None]()
        pieces = Next(bodies, reads_file=True)
        following: Offset = 0
        while (body := (yield pieces)) is not None:
            first = bodies.row - body.rows
            batch = Source(name, first, bodies.row - 1, first=first == 0)
            try:
                call = to.batch(body.kind, body.content, batch)
                learned = yield from self._do(call)
            except Refused as refused:
                cursor = refused.problem.get("cursor")
                if not isinstance(cursor, int) or not first < cursor < bodies.row:
                    raise
                bodies.seek(cursor)
                continue
            totals.rows = first
            totals.add_at(learned, body.rows)
            all_scores += learned.scores or [None] * body.rows
            assert learned.source is not UNSET
            following = learned.source.next
            if isinstance(following, int) and following > bodies.row:
                bodies.seek(following)
        if not totals.chunks:
            raise BadInput("there are no rows to send")
        summed = totals.result(to.model)
        summed.scores = all_scores if to.scores else UNSET
        summed.source = SourceNext(name, following)
        return summed


def _all_rejected(model: str, refused: Refused, seq: int) -> Learned:
    """Convert the refusal of all rows of a request to a response."""
    rejected = int(refused.problem.get("rejected") or 0)
    errors = [dict(error) for error in refused.errors]
    return Learned(model, seq, 0, 0, 0, None, rejected, False, errors=errors)


def _no_good_row(model: str, file: RowFile, learned: Learned) -> BadInput:
    """The cursor is after these rows, so the message says how to send them again."""
    reason = learned.errors[0]["reason"] if learned.errors else "see the server's log"
    return BadInput(
        f"{file.name}: no row of the first chunk is valid: {reason}; to send it again, first run"
        f" {_how_to_forget(model, file.source or '')}"
    )


def _how_to_forget(model: str, source: str) -> str:
    return f"`dualstream sources {model} --forget {shlex.quote(source)}`"


def _file_changed(file: RowFile, piece: Piece, refused: Refused) -> Refused:
    detail = (
        f"{file.name}: chunk {piece.number} was sent with other content, or by another command,"
        f" under the key {piece.key!r}; use a new key for a changed file"
    )
    return Refused(refused.problem | {"detail": detail}, refused.status)

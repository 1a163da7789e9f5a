"""Methods that learn: samples, streams, files, tables, lines, and late labels."""

import shlex
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

from msgspec import UNSET

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
from dualstream.client.method import JSON_BODY, Methods, bodies_ahead, check_table, method
from dualstream.client.progress_bar import OnProgress, Progress, ProgressBar, both
from dualstream.client.resumable_files import Piece, RowFile, is_cursor, read_ahead
from dualstream.client.row_values import labels_body, sample_line
from dualstream.client.rows import (
    ROWS_PER_REQUEST,
    bodies_arriving,
    bodies_of,
    body_of,
    is_single,
    is_table,
    row_of,
    sample,
    sample_of,
    samples_of,
)
from dualstream.wire.changes import SourceList
from dualstream.wire.chunking.chunks import CHUNK_BYTES
from dualstream.wire.schemas import Learned, LearnedStream, SourceNext
from dualstream.wire.sources import HEADER, Offset, Source, check_name
from dualstream.wire.totals import Totals

# Samples of `learn_iter`: an iterable, for AsyncClient also an asynchronous one.
Samples = TypeVar("Samples", bound=Iterable[Any] | AsyncIterable[Any])


class LearnMethods(Methods, Generic[Samples]):
    """Methods of a client that learn."""

    @method
    def learn(
        self,
        model: str,
        x: Any,
        y: Any = None,
        *,
        weight: Any = None,
        ids: Any = None,
        names: Sequence[str] | None = None,
        key: str | None = None,
        scores: bool = False,
        rows_per_request: int = ROWS_PER_REQUEST,
        source: Source | str | None = None,
        offset: int = 0,
    ) -> Steps[Learned]:
        """Learn one sample or many, in their order; rows.py lists the types that `x` may have.

        A table with the Arrow C stream interface (Polars, DuckDB, pyarrow, ...) has its label in a
        column. It is read once and sent as Arrow streams of about 1 MiB. With the name of a source
        as `source`, the offset of a row is its index in the table, plus `offset`: rows before the
        source's cursor are skipped, and each piece of the others is a batch of the source. Row 0
        begins a new source.

        Rows of a model with `columns` may contain their label; then leave `y` out.
        One sample is a row and its label; its score is in the response. Many rows are sent in
        requests of `rows_per_request`; the result is their sum, a LearnedStream. To repeat an
        interrupted learn, use the same `key` again; by default each learn has a new key.

        With a `source`, all rows are one batch of it, in one request without a key. The response
        has the source's next offset as `source.next`. A batch that is not the next one raises
        Refused of the kind `source-moved`, and `problem["cursor"]` is the offset to continue at.
        `unknown-source` says that the server has no cursor, and the batch is not sent with
        `first=True`: begin at the source's first row.
        """
        if source is not None and key is not None:
            raise BadInput("give either a key or a source")
        if offset and not isinstance(source, str):
            raise BadInput("an offset needs the name of a source: source='NAME'")
        if offset < 0:
            raise BadInput(f"the offset must be 0 or more, got {offset}")
        if isinstance(source, str) or is_table(x):
            check_table(x, y=y, weight=weight, ids=ids, names=names)
            if isinstance(source, str):
                bodies = bodies_of_table(x)
                bodies.row = offset
                return (yield from self._learn_source(model, bodies, source, scores))
            if source is not None:
                raise BadInput("the source of a table is a name: source='NAME'")
            return (yield from self._learn_bodies(model, bodies_ahead(x), key, scores))
        if source is not None:
            if is_single(x):
                body = sample_line(sample(row_of(x, names), y, weight, ids))
                return (yield from self._do(_source_call(model, JSON, body, source, scores)))
            body = body_of(samples_of(x, y, weight, ids, names))
            return (yield from self._do(_source_call(model, NDJSON, body, source, scores)))
        if is_single(x):
            nested: list[str] = []
            body = sample_line(sample(row_of(x, names), y, weight, ids), nested=nested)
            yield from self._check_nested(model, nested)
            return (yield from self._do(_learn_call(model, JSON, body, key or new_key())))
        lines = bodies_of(samples_of(x, y, weight, ids, names), rows_per_request)
        return (yield from self._learn_bodies(model, Next(lines), key, scores))

    @method
    def learn_iter(
        self,
        model: str,
        samples: Samples,
        *,
        key: str | None = None,
        scores: bool = False,
        progress: bool = False,
        on_progress: OnProgress | None = None,
        rows_per_request: int = ROWS_PER_REQUEST,
    ) -> Steps[LearnedStream]:
        """Learn a stream of `{"x": ..., "y": ...}` or pairs (x, y) to its end, in bounded memory.

        AsyncClient also takes an asynchronous stream. `progress` shows a bar in the terminal;
        `on_progress` is called after each request.
        """
        if isinstance(samples, AsyncIterable):
            following = Next(bodies_arriving(samples, rows_per_request))
        else:
            following = Next(bodies_of(map(sample_of, samples), rows_per_request))
        with ProgressBar(model) if progress else nullcontext() as bar:
            listener = both(bar, on_progress)
            return (yield from self._learn_bodies(model, following, key, scores, listener))

    @method
    def learn_file(
        self, model: str, file: RowFile, *, skip: int = 0, on_progress: OnProgress | None = None
    ) -> Steps[LearnedStream]:
        """Learn the rows of a file of any format, chunk by chunk, without its first `skip` chunks.

        Sending the same file again learns only what was not learned before. If the first chunk has
        no valid row, the rest is not sent. A file with a `source` is learned from its cursor.
        """
        totals, count, empty = Totals(), 0, 0
        cursor = (yield from self._cursor(model, file.source)) if file.source else None
        pieces = Next(read_ahead(file.pieces(cursor)), reads_file=True)
        while (piece := (yield pieces)) is not None:
            count += 1
            if piece.number < skip:
                continue
            try:
                learned = yield from self._do(_piece_call(model, file, piece))
            except Refused as refused:
                if refused.kind == "idempotency-key-reused":
                    raise _file_changed(file, piece, refused) from None
                if refused.has_no_rows:
                    empty += 1
                    continue
                if refused.kind != "invalid-rows" or not totals.seq:
                    raise
                learned = _all_rejected(model, refused, totals.seq)
            if file.source and not (piece.start or learned.count) and learned.rejected:
                raise _no_good_row(model, file, learned)
            totals.add_at(learned, learned.sent(), piece.line)
            if on_progress is not None:
                on_progress(Progress(totals.rows, learned, piece))
        if count == empty and cursor is None:
            raise NoRows(f"{file.name}: the file has no rows")
        if count < skip:
            raise BadInput(f"{file.name}: cannot skip {skip} chunks; the file has {count}")
        return totals.result(model)

    def _cursor(self, model: str, source: str) -> Steps[str | None]:
        """The cursor of a source that is a file. Raises BadInput for a name too long, and for a
        cursor that no file has."""
        try:
            check_name(source)
        except ValueError as wrong:
            raise BadInput(f"{source}: {wrong}; learn the file with --key") from None
        call = Call[SourceList]("GET", model_path(model, "sources"), SourceList)
        sources = (yield from self._do(call)).sources
        cursor = next((one.next for one in sources if one.name == source), None)
        if cursor is None:
            return None
        if not is_cursor(cursor):
            raise BadInput(
                f"the cursor of the source {source} is not that of a file; to learn the file again,"
                f" first run {_how_to_forget(model, source)}"
            )
        return str(cursor)

    @method
    def learn_lines(
        self, model: str, lines: bytes, *, source: Source, scores: bool = False
    ) -> Call[Learned]:
        """Learn lines of NDJSON, as they are, as one batch of a source; see `learn`.

        They may be flat rows or samples, or be empty to move the source's cursor alone.
        """
        return _source_call(model, NDJSON, lines, source, scores)

    @method
    def check_lines(self, model: str, lines: Sequence[bytes]) -> Steps[Refused | None]:
        """Check lines of NDJSON; learn nothing. Returns the refusal if no line is a good row."""
        body = b"\n".join((*lines, b"null"))  # with a bad line, an atomic request learns nothing
        headers, query = {"content-type": NDJSON}, query_of(atomic=True)
        call = Call[Learned]("POST", model_path(model, "learn"), Learned, query, headers, body)
        try:
            yield from self._do(call)
        except Refused as refused:
            if refused.kind != "invalid-rows":
                raise
            return refused if refused.problem.get("rejected") == len(lines) + 1 else None
        return None

    @method
    def learn_labels(
        self, model: str, labels: Mapping[str | int, Any], *, key: str | None = None
    ) -> Call[Learned]:
        """Learn the labels of rows from `predict_and_remember`, by their ids."""
        path, headers = model_path(model, "labels"), with_key(key or new_key())
        return Call("POST", path, Learned, {}, headers, labels_body(labels))

    @method
    def label_lines(self, model: str, labels: Sequence[bytes]) -> Call[Learned]:
        """Learn labels that are JSON texts with `id` and `y`, without an idempotency key."""
        body = b'{"labels":[' + b",".join(labels) + b"]}"
        return Call("POST", model_path(model, "labels"), Learned, {}, JSON_BODY, body)

    def _learn_bodies(
        self,
        model: str,
        bodies: Next,
        key: str | None,
        scores: bool,
        on_progress: OnProgress | None = None,
    ) -> Steps[LearnedStream]:
        """Learn bodies under the keys KEY:0, KEY:1, ...; returns the sum of the responses.

        Raises Refused if no row is valid, BadInput if there are no rows.
        """
        key, totals, all_scores = key or new_key(), Totals(), list[float | None]()
        first: Refused | None = None
        number = 0
        has_columns = False
        while (body := (yield bodies)) is not None:
            if body.nested is not None and not has_columns:
                yield from self._check_nested(model, [body.nested])
                has_columns = True
            try:
                call = _learn_call(model, body.kind, body.content, f"{key}:{number}", scores)
                learned = yield from self._do(call)
            except Refused as refused:
                if refused.kind != "invalid-rows":
                    raise
                first = first or refused
                learned = _all_rejected(model, refused, totals.seq)
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
        summed = totals.result(model)
        summed.scores = all_scores if scores else UNSET
        return summed

    def _learn_source(
        self, model: str, bodies: TableBodies, name: str, scores: bool
    ) -> Steps[LearnedStream]:
        """Learn bodies as batches of a source, from its cursor; returns the sum of the responses.

        The first body finds the cursor, which is in the response even if nothing is learned.
        """
        totals, all_scores = Totals(), list[float | None]()
        pieces = Next(bodies, reads_file=True)
        following: Offset = 0
        while (body := (yield pieces)) is not None:
            first = bodies.row - body.rows
            batch = Source(name, first, bodies.row - 1, first=first == 0)
            try:
                call = _source_call(model, body.kind, body.content, batch, scores)
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
        summed = totals.result(model)
        summed.scores = all_scores if scores else UNSET
        summed.source = SourceNext(name, following)
        return summed


def _learn_call(
    model: str, kind: str, body: bytes, key: str, scores: bool = False
) -> Call[Learned]:
    # The server splits a longer body into chunks, and answers with the sum of theirs.
    is_split = len(body) > CHUNK_BYTES and kind != JSON
    answer = LearnedStream if is_split else Learned
    headers = {"content-type": kind, **with_key(key)}
    return Call("POST", model_path(model, "learn"), answer, query_of(scores=scores), headers, body)


def _source_call(model: str, kind: str, body: bytes, source: Source, scores: bool) -> Call[Learned]:
    try:
        headers = {"content-type": kind, HEADER: source.header()}
    except ValueError as wrong:
        raise BadInput(str(wrong)) from None
    return Call("POST", model_path(model, "learn"), Learned, query_of(scores=scores), headers, body)


def _all_rejected(model: str, refused: Refused, seq: int) -> Learned:
    """Convert the refusal of all rows of a request to a response."""
    rejected = int(refused.problem.get("rejected") or 0)
    errors = [dict(error) for error in refused.errors]
    return Learned(model, seq, 0, 0, 0, None, rejected, False, errors=errors)


def _piece_call(model: str, file: RowFile, piece: Piece) -> Call[Learned]:
    if file.source is None:
        return _learn_call(model, file.sent_as, piece.content, piece.key)
    first = piece.start == 0
    batch = Source(file.source, piece.cursor, next=piece.next_cursor, first=first)
    return _source_call(model, file.sent_as, piece.content, batch, scores=False)


def _no_good_row(model: str, file: RowFile, learned: Learned) -> BadInput:
    """The cursor is after these rows, so the message says how to learn them again."""
    reason = learned.errors[0]["reason"] if learned.errors else "see the server's log"
    return BadInput(
        f"{file.name}: no row of the first chunk is valid: {reason}; to send it again, first run"
        f" {_how_to_forget(model, file.source or '')}"
    )


def _how_to_forget(model: str, source: str) -> str:
    return f"`dualstream sources {model} --forget {shlex.quote(source)}`"


def _file_changed(file: RowFile, piece: Piece, refused: Refused) -> Refused:
    detail = (
        f"{file.name}: chunk {piece.number} was learned with other content under the key"
        f" {piece.key!r}; use a new key for a changed file"
    )
    return Refused(refused.problem | {"detail": detail}, refused.status)

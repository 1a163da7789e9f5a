"""The methods of `Client` and `AsyncClient`, each written once.

A method returns one `Call`, or is a generator of actions (`Steps`) if it needs several requests or
handles refusals. `Client` performs the actions in blocking calls, `AsyncClient` awaits them.
"""

import shlex
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

import msgspec
from msgspec import UNSET

from dualstream.client.arrow_tables import TableBodies, bodies_of_table, scores_table
from dualstream.client.calls import (
    JSON,
    NDJSON,
    Call,
    Next,
    Steps,
    asked,
    encoded,
    model_path,
    new_key,
    send,
    with_key,
)
from dualstream.client.errors import BadInput, NoRows, Refused
from dualstream.client.files import Piece, RowFile, read_ahead
from dualstream.client.progress_bar import OnProgress, Progress, ProgressBar, both
from dualstream.client.responses import (
    Certificate,
    Change,
    ChangePage,
    Columns,
    Comparison,
    Curves,
    Member,
    Members,
    Model,
    ModelPage,
    Refit,
    Refits,
    Resumed,
    RolledBack,
    SourceCursor,
    SourceList,
    Support,
    Timeline,
    Unlearned,
    Version,
    Versions,
    Weights,
)
from dualstream.client.row_values import labels_body, plain, sample_line
from dualstream.client.rows import (
    ROWS_PER_REQUEST,
    bodies_arriving,
    bodies_of,
    body_of,
    has_stream,
    is_single,
    is_table,
    row_of,
    sample,
    sample_of,
    samples_of,
)
from dualstream.wire.chunking.chunks import CHUNK_BYTES
from dualstream.wire.problems import MAX_ERRORS
from dualstream.wire.schemas import (
    MAX_EXPLAINED,
    Explanation,
    Learned,
    LearnedStream,
    Predicted,
    PredictedMany,
    SourceNext,
)
from dualstream.wire.sources import HEADER, Offset, Source, check_name
from dualstream.wire.totals import Totals

P = ParamSpec("P")
T = TypeVar("T")
# Samples of `learn_iter`: an iterable, for AsyncClient also an asynchronous one.
Samples = TypeVar("Samples", bound=Iterable[Any] | AsyncIterable[Any])
Spec: TypeAlias = Mapping[str, Any]

PRECONDITION_FAILED = 412


class method(Generic[P, T]):
    """Decorator of a method of both clients, which states its type on each of them.

    `clients.py` replaces it by a function on `Client` and by a coroutine function on `AsyncClient`.
    """

    def __init__(self, steps: Callable[Concatenate[Any, P], Call[T] | Steps[T]]) -> None:
        self.steps = steps

    if TYPE_CHECKING:

        @overload
        def __get__(self, client: "BlockingMethods", owner: type) -> Callable[P, T]: ...
        @overload
        def __get__(
            self, client: "AwaitedMethods", owner: type
        ) -> Callable[P, Coroutine[Any, Any, T]]: ...
        @overload
        def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
        def __get__(self, client: Any, owner: type) -> Any: ...


class Methods(Generic[Samples]):
    """Base class of `Client` and `AsyncClient`."""

    _patience_s: float

    # -- models ----------------------------------------------------------------------------------

    @method
    def create(
        self, model: str, spec: Spec | None = None, *, replace: bool = False
    ) -> Steps[Model]:
        """Create a model, or return the existing one if it has the same spec.

        With `replace`, a model with another spec is deleted first, with all it has learned.
        """
        path, body = model_path(model), encoded(spec or {})
        if replace:
            try:
                return (yield from self._do(Call("PUT", path, Model, {}, {"if-match": "*"}, body)))
            except Refused as refused:
                if refused.status != PRECONDITION_FAILED:  # there is no such model
                    raise
        return (yield from self._do(Call("PUT", path, Model, body=body)))

    @method
    def get(self, model: str, *, digest: bool = False) -> Call[Model]:
        """The spec, seq and counts of a model; with `digest` also the digest of its state."""
        return Call("GET", model_path(model), Model, asked(digest=digest))

    @method
    def models(self) -> Steps[list[Model]]:
        """All models of the store, in the order of their ids."""
        found: list[Model] = []
        after: str | None = ""
        while after is not None:
            query = asked(after=after, limit=1000)
            page = yield from self._do(Call[ModelPage]("GET", "/models", ModelPage, query))
            found += page.models
            after = page.next
        return found

    @method
    def audit(self, model: str | None = None, *, after: str | None = None) -> Steps[list[Change]]:
        """The audit log, oldest change first: of all models, or of one.

        `after` is the `place` of the last change already seen.
        """
        found: list[Change] = []
        place: str | None = after or ""
        while place is not None:
            query = asked(model=model, after=place, limit=1000)
            page = yield from self._do(Call[ChangePage]("GET", "/audit", ChangePage, query))
            found += page.changes
            place = page.next
        return found

    @method
    def delete(self, model: str) -> Call[None]:
        """Delete a model, its journal and its versions."""
        return Call("DELETE", model_path(model), None)

    @method
    def metrics(self, model: str) -> Call[dict[str, Any]]:
        """Progressive metrics, with baselines: `since_start`, `rolling`, `fading`."""
        return Call("GET", model_path(model, "metrics"), dict[str, Any])

    @method
    def timeline(self, model: str) -> Call[Timeline]:
        """Metrics over time, and the points where the loss drifted."""
        return Call("GET", model_path(model, "timeline"), Timeline)

    @method
    def columns(self, model: str, *, sort: str = "psi") -> Call[Columns]:
        """What each column of the stream holds; by drift (`psi`) or `name`."""
        return Call("GET", model_path(model, "columns"), Columns, asked(sort=sort))

    @method
    def weights(self, model: str, *, top: int = 20, member: str | None = None) -> Call[Weights]:
        """The largest weights, by magnitude."""
        return Call("GET", model_path(model, "weights"), Weights, asked(top=top, member=member))

    @method
    def curves(self, model: str, *, top: int = 128, member: str | None = None) -> Call[Curves]:
        """The functions of single features that `splines` have learned."""
        return Call("GET", model_path(model, "curves"), Curves, asked(top=top, member=member))

    @method
    def support(self, model: str) -> Call[Support]:
        """The features that a sparse model uses."""
        return Call("GET", model_path(model, "support"), Support)

    @method
    def certificate(self, model: str, *, member: str | None = None) -> Call[Certificate]:
        """The duality gap: how far the served weights are from the optimum on their window."""
        return Call("GET", model_path(model, "certificate"), Certificate, asked(member=member))

    @method
    def export(self, model: str, format: str = "json", *, member: str | None = None) -> Call[bytes]:
        """The model, or one member, as a file for another program: json, onnx, sklearn-coef, vw,
        xgboost."""
        return Call("GET", model_path(model, "export"), bytes, asked(format=format, member=member))

    @method
    def ready(self) -> Call[dict[str, Any]]:
        """The state of the server, once it is ready."""
        return Call("GET", "/readyz", dict[str, Any], {"verbose": ""})

    # -- learn -----------------------------------------------------------------------------------

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
        source's cursor are skipped, and each piece of the others is a batch of the source.

        Rows of a model with `columns` may contain their label; then leave `y` out.
        One sample is a row and its label; its score is in the response. Many rows are sent in
        requests of `rows_per_request`; the result is their sum, a LearnedStream. To repeat an
        interrupted learn, use the same `key` again; by default each learn has a new key.

        With a `source`, all rows are one batch of it, in one request without a key. The response
        has the source's next offset as `source.next`. A batch that is not the next one raises
        Refused of the kind `source-moved`, and `problem["cursor"]` is the offset to continue at.
        """
        if source is not None and key is not None:
            raise BadInput("give either a key or a source")
        if offset and not isinstance(source, str):
            raise BadInput("an offset needs the name of a source: source='NAME'")
        if offset < 0:
            raise BadInput(f"the offset must be 0 or more, got {offset}")
        if isinstance(source, str) or is_table(x):
            _check_table(x, y=y, weight=weight, ids=ids, names=names)
            if isinstance(source, str):
                bodies = bodies_of_table(x)
                bodies.row = offset
                return (yield from self._learn_source(model, bodies, source, scores))
            if source is not None:
                raise BadInput("the source of a table is a name: source='NAME'")
            return (yield from self._learn_bodies(model, _ahead(x), key, scores))
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
        totals, found, empty = Totals(), 0, 0
        start = (yield from self._cursor(model, file.source)) if file.source else 0
        pieces = Next(read_ahead(file.pieces(start)), reads_file=True)
        while (piece := (yield pieces)) is not None:
            found += 1
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
        if found == empty and not start:
            raise NoRows(f"{file.name}: the file has no rows")
        if found < skip:
            raise BadInput(f"{file.name}: cannot skip {skip} chunks; the file has {found}")
        return totals.result(model)

    def _cursor(self, model: str, source: str) -> Steps[int]:
        """The next offset of a source that is a file. Raises BadInput for a name too long."""
        try:
            check_name(source)
        except ValueError as wrong:
            raise BadInput(f"{source}: {wrong}; learn the file with --key") from None
        call = Call[SourceList]("GET", model_path(model, "sources"), SourceList)
        sources = (yield from self._do(call)).sources
        found = next((one.next for one in sources if one.name == source), 0)
        if not isinstance(found, int):
            raise BadInput(f"the source {source} of model {model!r} has texts as offsets")
        return found

    @method
    def learn_lines(
        self, model: str, lines: bytes, *, source: Source, scores: bool = False
    ) -> Call[Learned]:
        """Learn lines of NDJSON, as they are, as one batch of a source; see `learn`.

        They may be flat rows or samples, or be empty to move the source's cursor alone.
        """
        return _source_call(model, NDJSON, lines, source, scores)

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
        return Call("POST", model_path(model, "labels"), Learned, {}, _JSON_BODY, body)

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
            batch = Source(name, first, bodies.row - 1)
            try:
                call = _source_call(model, body.kind, body.content, batch, scores)
                learned = yield from self._do(call)
            except Refused as refused:
                cursor = refused.problem.get("cursor")
                if not isinstance(cursor, int) or not first < cursor < bodies.row:
                    raise
                bodies.go_to(cursor)
                continue
            totals.rows = first
            totals.add_at(learned, body.rows)
            all_scores += learned.scores or [None] * body.rows
            assert learned.source is not UNSET
            following = learned.source.next
            if isinstance(following, int) and following > bodies.row:
                bodies.go_to(following)
        if not totals.chunks:
            raise BadInput("there are no rows to send")
        summed = totals.result(model)
        summed.scores = all_scores if scores else UNSET
        summed.source = SourceNext(name, following)
        return summed

    # -- predict ---------------------------------------------------------------------------------

    @method
    def predict(
        self,
        model: str,
        x: Any,
        *,
        names: Sequence[str] | None = None,
        min_seq: int | None = None,
        version: str | None = None,
        explain: bool = False,
        rows_per_request: int = ROWS_PER_REQUEST,
    ) -> Steps[Any]:
        """Score one row (Predicted) or many (PredictedMany); the model does not change.

        Of a table as in `learn`, the result is a pyarrow Table with the columns score, label and
        probability, which are null for a refused row.
        `min_seq` waits until the state has this seq; `version` scores with the version of this
        name. `explain` also returns what each feature contributes, 20 rows a request.
        """
        query = asked(min_seq=min_seq, version=version, explain=explain)
        if is_table(x):
            _check_table(x, explain=explain or None, names=names)
            return scores_table((yield from self._predict_bodies(model, _ahead(x), query)))
        if explain:
            rows_per_request = min(rows_per_request, MAX_EXPLAINED)
        if is_single(x):
            nested: list[str] = []
            body = sample_line({"x": row_of(x, names)}, nested=nested)
            yield from self._check_nested(model, nested)
            return (yield from self._do(_predict_call(model, JSON, body, query, Predicted)))
        lines = Next(bodies_of(samples_of(x, names=names), rows_per_request))
        return _joined((yield from self._predict_bodies(model, lines, query)))

    def _predict_bodies(
        self, model: str, bodies: Next, query: Mapping[str, str]
    ) -> Steps[list[PredictedMany]]:
        """Score bodies. Raises BadInput if there are no rows."""
        answers: list[PredictedMany] = []
        has_columns = False
        while (many := (yield bodies)) is not None:
            if many.nested is not None and not has_columns:
                yield from self._check_nested(model, [many.nested])
                has_columns = True
            answers.append((yield from self._predict_body(model, many.kind, many.content, query)))
        if not answers:
            raise BadInput("there are no rows to send")
        return answers

    @method
    def predict_and_remember(
        self,
        model: str,
        x: Any,
        ids: Any,
        *,
        names: Sequence[str] | None = None,
        default_label: Any = None,
        default_after_s: float | None = None,
    ) -> Steps[PredictedMany]:
        """Score rows, and keep them in the store under their ids until `learn_labels`.

        A row whose label does not arrive within `default_after_s` learns `default_label`.
        """
        try:
            label = plain(default_label)
        except TypeError as wrong:
            raise BadInput(f"the default label: {wrong}") from None
        query = asked(
            remember=True,
            # False is a label here, not an absent flag.
            default_label="false" if label is False else label,
            default_after_s=default_after_s,
        )
        samples = enumerate(samples_of(x, ids=ids, names=names))
        nested: list[str] = []
        lines = b",".join(sample_line(one, row, nested) for row, one in samples)
        yield from self._check_nested(model, nested)
        body = b'{"samples":[' + lines + b"]}"
        return (yield from self._do(_predict_call(model, JSON, body, query, PredictedMany)))

    @method
    def predict_lines(
        self, model: str, lines: Sequence[bytes], *, remember: bool = False
    ) -> Steps[PredictedMany]:
        """Score rows that are JSON texts, as they are; `remember` as `predict_and_remember`."""
        body = b"[" + b",".join(lines) + b"]"
        return (yield from self._predict_body(model, JSON, body, asked(remember=remember)))

    def _check_nested(self, model: str, nested: Sequence[str]) -> Steps[None]:
        """Raise BadInput if rows have lists, objects or times, and the model has no `columns`.

        Without `columns`, a time would be a category of its own.
        """
        if not nested:
            return
        found = yield from self._do(Call[Model]("GET", model_path(model), Model))
        if found.spec.get("columns") is None:
            advice = "convert it, or create the model with `columns`"
            if "feature 'x' is" in nested[0]:
                advice = 'if these are samples {"x": ..., "y": ...}, learn them by `learn_iter`'
            raise BadInput(
                f"{nested[0]}; model {model!r} has no `columns`, so a feature must be a number,"
                f" bool or text: {advice}"
            )

    def _predict_piece(
        self, model: str, file: RowFile, piece: Piece, query: Mapping[str, str]
    ) -> Steps[PredictedMany | None]:
        """Score a chunk of a file; None if it has no rows."""
        try:
            return (yield from self._predict_rows(model, file, piece, query))
        except Refused as refused:
            if not refused.has_no_rows:
                raise
            return None

    def _predict_rows(
        self, model: str, file: RowFile, piece: Piece, query: Mapping[str, str]
    ) -> Steps[PredictedMany]:
        if file.kind != JSON:
            return (yield from self._predict_body(model, file.sent_as, piece.content, query))
        # A JSON document has one row or many; so has its response.
        call = _predict_call(model, JSON, piece.content, query, dict[str, Any])
        answer = yield from self._do(call)
        if "scores" in answer:
            return msgspec.convert(answer, PredictedMany)
        one = msgspec.convert(answer, Predicted)
        return PredictedMany(model, one.seq, [one.score], [one.label], [one.probability])

    def _predict_body(
        self, model: str, kind: str, body: bytes, query: Mapping[str, str]
    ) -> Steps[PredictedMany]:
        """Score a body. If no row is valid, every score is None."""
        try:
            return (yield from self._do(_predict_call(model, kind, body, query, PredictedMany)))
        except Refused as refused:
            count = refused.problem.get("rejected")
            if refused.kind != "invalid-rows" or not count:
                raise
            errors = [dict(error) for error in refused.errors]
            nones: list[Any] = [None] * count
            return PredictedMany(model, 0, nones, [*nones], [*nones], rejected=count, errors=errors)

    # -- members, versions, samples --------------------------------------------------------------

    @method
    def members(self, model: str) -> Call[Members]:
        """The members of a portfolio and their weights."""
        return Call("GET", model_path(model, "members"), Members)

    @method
    def add_member(self, model: str, spec: Spec, *, key: str | None = None) -> Call[Member]:
        """Add a member, which first learns the rows that the model retains."""
        path, headers = model_path(model, "members"), with_key(key or new_key())
        return Call("POST", path, Member, {}, headers, encoded(spec))

    @method
    def remove_member(self, model: str, name: str) -> Call[None]:
        """Delete a member and what it has learned."""
        return Call("DELETE", model_path(model, "members", name), None)

    @method
    def promote(self, model: str, name: str) -> Call[Member]:
        """Serve this member alone."""
        return Call("POST", model_path(model, "members", name, "promote"), Member)

    @method
    def end_promotion(self, model: str) -> Call[Members]:
        """Serve all members again."""
        return Call("DELETE", model_path(model, "promotion"), Members)

    @method
    def compare(self, model: str, a: str, b: str, *, level: float = 0.95) -> Call[Comparison]:
        """Which of two members has the smaller loss, with a confidence interval."""
        return Call("GET", model_path(model, "compare"), Comparison, asked(a=a, b=b, level=level))

    @method
    def take_version(self, model: str, name: str | None = None, *, note: str = "") -> Call[Version]:
        """Save a full copy of the state under a name."""
        body = encoded({"name": name, "note": note})
        return Call("POST", model_path(model, "versions"), Version, {}, _JSON_BODY, body)

    @method
    def versions(self, model: str) -> Call[Versions]:
        """All versions, and the first seq in the journal."""
        return Call("GET", model_path(model, "versions"), Versions)

    @method
    def delete_version(self, model: str, name: str) -> Call[None]:
        """Delete a version."""
        return Call("DELETE", model_path(model, "versions", name), None)

    @method
    def roll_back(
        self,
        model: str,
        *,
        version: str | None = None,
        seq: int | None = None,
        key: str | None = None,
    ) -> Call[RolledBack]:
        """Restore an earlier state, by the name of a version or by a seq."""
        if (version is None) == (seq is None):
            raise BadInput("give either a version or a seq")
        body = encoded({"version": version} if seq is None else {"seq": seq})
        headers = {**_JSON_BODY, **with_key(key or new_key())}
        return Call("POST", model_path(model, "rollback"), RolledBack, {}, headers, body)

    @method
    def resume(self, model: str, *, rows: str, key: str | None = None) -> Call[Resumed]:
        """End a pause of learning; `learn` or `drop` the rows in quarantine."""
        if rows not in ("learn", "drop"):
            raise BadInput(f"rows must be 'learn' or 'drop', got {rows!r}")
        headers = with_key(key or new_key())
        return Call("POST", model_path(model, "resume"), Resumed, {"rows": rows}, headers)

    @method
    def refit(
        self,
        model: str,
        *,
        method: str | None = None,
        tol: float | None = None,
        max_epochs: int | None = None,
        rows: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Call[Refit]:
        """Begin to solve the model's window to the optimum; `read_refit` has the progress.

        options  of the method, such as {"parts": 8} of mcpa
        """
        given: dict[str, Any] = {"method": method, "tol": tol, "max_epochs": max_epochs}
        given |= {"rows": rows, "options": options}
        body = encoded({name: value for name, value in given.items() if value is not None})
        return Call("POST", model_path(model, "refit"), Refit, {}, _JSON_BODY, body)

    @method
    def refits(self, model: str) -> Call[Refits]:
        """The last refits, newest first."""
        return Call("GET", model_path(model, "refits"), Refits)

    @method
    def read_refit(self, model: str, job: str) -> Call[Refit]:
        """Progress and outcome of a refit."""
        return Call("GET", model_path(model, "refits", job), Refit)

    @method
    def cancel_refit(self, model: str, job: str) -> Call[Refit]:
        """Cancel a refit; one that has ended is returned as it is."""
        return Call("DELETE", model_path(model, "refits", job), Refit)

    @method
    def unlearn(self, model: str, sample: str | int) -> Call[Unlearned]:
        """Unlearn a retained sample; repeat the call until its `status` is done."""
        return Call("DELETE", model_path(model, "samples", str(sample)), Unlearned)

    @method
    def sources(self, model: str) -> Steps[list[SourceCursor]]:
        """The sources of a model, by name."""
        call = Call[SourceList]("GET", model_path(model, "sources"), SourceList)
        return (yield from self._do(call)).sources

    @method
    def set_source(self, model: str, source: str, next: Offset) -> Call[SourceCursor]:
        """Set the offset at which the next batch of a source begins."""
        path, body = model_path(model, "sources", source), encoded({"next": next})
        return Call("PUT", path, SourceCursor, {}, _JSON_BODY, body)

    @method
    def forget_source(self, model: str, source: str) -> Call[None]:
        """Forget a source: its next batch may begin at any offset."""
        return Call("DELETE", model_path(model, "sources", source), None)

    def _do(self, call: Call[T]) -> Steps[T]:
        return send(call, self._patience_s)


class BlockingMethods(Methods[Iterable[Any]]):
    """Base class of `Client`: its methods return results."""


class AwaitedMethods(Methods[Iterable[Any] | AsyncIterable[Any]]):
    """Base class of `AsyncClient`: its methods are coroutine functions."""


_JSON_BODY = {"content-type": JSON}


def _check_table(x: Any, **others: Any) -> None:
    """Raise BadInput unless this is a table, without arguments for rows of other types."""
    if not has_stream(x):
        raise BadInput(
            "the name of a source needs a table with the Arrow C stream interface;"
            " give other rows a Source(name, from_, to)"
        )
    for name, value in others.items():
        if value is not None:
            why = "; its label, weight and id are columns" * (name in ("y", "weight", "ids"))
            raise BadInput(f"a table takes no argument {name!r}{why}")


def _ahead(table: Any) -> Next:
    """The bodies of a table, each made while the one before it is sent."""
    return Next(read_ahead(bodies_of_table(table)), reads_file=True)


def _learn_call(
    model: str, kind: str, body: bytes, key: str, scores: bool = False
) -> Call[Learned]:
    # The server splits a longer body into chunks, and answers with the sum of theirs.
    is_split = len(body) > CHUNK_BYTES and kind != JSON
    answer = LearnedStream if is_split else Learned
    headers = {"content-type": kind, **with_key(key)}
    return Call("POST", model_path(model, "learn"), answer, asked(scores=scores), headers, body)


def _source_call(model: str, kind: str, body: bytes, source: Source, scores: bool) -> Call[Learned]:
    try:
        headers = {"content-type": kind, HEADER: source.header()}
    except ValueError as wrong:
        raise BadInput(str(wrong)) from None
    return Call("POST", model_path(model, "learn"), Learned, asked(scores=scores), headers, body)


def _predict_call(
    model: str, kind: str, body: bytes, query: Mapping[str, str], answer: type[T]
) -> Call[T]:
    return Call("POST", model_path(model, "predict"), answer, query, {"content-type": kind}, body)


def _all_rejected(model: str, refused: Refused, seq: int) -> Learned:
    """Convert the refusal of all rows of a request to a response."""
    rejected = int(refused.problem.get("rejected") or 0)
    errors = [dict(error) for error in refused.errors]
    return Learned(model, seq, 0, 0, 0, None, rejected, False, errors=errors)


def _piece_call(model: str, file: RowFile, piece: Piece) -> Call[Learned]:
    if file.source is None:
        return _learn_call(model, file.sent_as, piece.content, piece.key)
    batch = Source(file.source, piece.start, piece.end - 1)
    return _source_call(model, file.sent_as, piece.content, batch, scores=False)


def _no_good_row(model: str, file: RowFile, learned: Learned) -> BadInput:
    """The cursor is after these rows, so the message says how to learn them again."""
    reason = learned.errors[0]["reason"] if learned.errors else "see the server's log"
    return BadInput(
        f"{file.name}: no row of the first chunk is valid: {reason}; to send it again, first run"
        f" `dualstream sources {model} --forget {shlex.quote(file.source or '')}`"
    )


def _file_changed(file: RowFile, piece: Piece, refused: Refused) -> Refused:
    detail = (
        f"{file.name}: chunk {piece.number} was learned with other content under the key"
        f" {piece.key!r}; use a new key for a changed file"
    )
    return Refused(refused.problem | {"detail": detail}, refused.status)


def _joined(answers: list[PredictedMany]) -> PredictedMany:
    """Concatenate responses to consecutive bodies; `seq` is the oldest.

    A body without a valid row has neither a seq nor probabilities of its own.
    """
    whole = answers[0]
    scored = [one for one in answers if one.rejected != len(one.scores)]
    seq = min((one.seq for one in scored), default=0)
    has_probabilities = all(one.probabilities is not None for one in scored)
    chances = chain.from_iterable(one.probabilities or () for one in answers)
    probabilities = list(chances) if has_probabilities else None
    for more in answers[1:]:
        for error in more.errors or ():
            error["index"] += len(whole.scores)
        # A body without a valid row has no explanations either.
        if whole.explanations or more.explanations:
            whole.explanations = [*_explanations(whole), *_explanations(more)]
        whole.scores += more.scores
        whole.labels += more.labels
        whole.rejected = (whole.rejected or 0) + (more.rejected or 0) or UNSET
        whole.errors = [*(whole.errors or ()), *(more.errors or ())][:MAX_ERRORS] or UNSET
        whole.stale = whole.stale or more.stale
        whole.age_seconds = max(whole.age_seconds or 0.0, more.age_seconds or 0.0) or UNSET
    whole.seq, whole.probabilities = seq, probabilities
    return whole


def _explanations(one: PredictedMany) -> list[Explanation | None]:
    return list(one.explanations or [None] * len(one.scores))

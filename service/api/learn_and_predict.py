"""POST learn and GET/POST predict: plain ASGI routes in front of FastAPI.

A body parameter of FastAPI alone costs more than the journal's append. Here a typed decoder reads
the body, and the answer is sent as bytes. exceptions_to_problems.py names the errors.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send

from dualstream.service.api import responses
from dualstream.service.api.events import Events
from dualstream.service.api.explanations import add_explanations, check_few
from dualstream.service.api.late_labels import parse_rows_to_remember, read_wait, remember_rows
from dualstream.service.api.request_rows import count_refused, key_of, parse, request_of
from dualstream.service.api.sources import learn_from_source
from dualstream.service.api.streaming_upload import Upload, check_streamable
from dualstream.service.codecs import (
    ParsedRows,
    as_batch,
    media_type,
    parse_named_row,
    parse_query_row,
)
from dualstream.service.concurrency import run_to_completion
from dualstream.service.http.access import REMEMBER_PARAMETERS, not_allowed
from dualstream.service.http.body_memory import BodyMemory, body_of, release_body
from dualstream.service.http.exceptions_to_problems import problem_of
from dualstream.service.http.overload import LEARN, AdmissionControl
from dualstream.service.http.rate_limits import admit_rows, limits_of
from dualstream.service.http.request_body import (
    body_pieces,
    limit_body,
    prepend,
    read_body,
    read_up_to,
)
from dualstream.service.http.request_head import (
    Head,
    invalid_source,
    read_count,
    read_flag,
    read_head,
    read_key,
    read_query,
    read_source,
)
from dualstream.service.http.request_log import note_long, note_rows
from dualstream.service.http.send import (
    PIECE_BYTES,
    Headers,
    answer_lines,
    json_line,
    one_line,
    send_in_pieces,
    send_json,
    send_problem,
)
from dualstream.service.journal.protocol import ModelChanged
from dualstream.service.metrics import Telemetry
from dualstream.service.models.model import Model
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.models.versions import (
    MAX_LOADED_VERSIONS,
    MAX_LOADED_VERSIONS_BYTES,
    LoadedVersion,
    LoadedVersions,
)
from dualstream.service.replica.replica import Replica
from dualstream.solvers import Batch
from dualstream.solvers.protocols.learner import as_served
from dualstream.solvers.rows.text.count_lines import count_lines
from dualstream.wire.chunking.chunks import CHUNK_BYTES, CHUNKERS, Chunker, chunker_of, chunks_of
from dualstream.wire.problem_json import Problem
from dualstream.wire.schemas import Learned, Predicted, PredictedMany

if TYPE_CHECKING:
    from dualstream.service.models.late_labels import Kept

REPLAYED = (b"idempotency-replayed", b"true")
_OF_PREDICTIONS = ("min_seq", "version", "explain", "top")
"""Query parameters of every prediction."""


Endpoint = Callable[[str, Scope, Receive], Awaitable[Any]]
"""Model id and request -> body (bytes, or an iterator of lines) and headers."""


class FastRoutes:
    """ASGI router: serves learn, predict and events itself, passes everything else to `app`."""

    def __init__(
        self,
        app: ASGIApp,
        registry: ModelRegistry,
        startup: Readiness,
        admission: AdmissionControl,
        bodies: BodyMemory,
        telemetry: Telemetry,
    ) -> None:
        self._app = app
        self._registry = registry
        self._settings = registry.settings
        self._startup, self._admission = startup, admission
        self._bodies = bodies
        self._telemetry = telemetry
        self._events = Events(registry, startup, telemetry)
        self._versions = LoadedVersions(MAX_LOADED_VERSIONS, MAX_LOADED_VERSIONS_BYTES)
        self._uploads: set[Upload] = set()

    def stop_streams(self) -> None:
        """End event streams at once, and uploads after their present chunk."""
        self._events.stop()
        for upload in self._uploads:
            upload.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._bodies.track(scope)
        path: str = scope["path"]
        if path.startswith("/models/"):
            model_id, _, action = path[8:].partition("/")
            if action == "events":
                note_long(scope)
                await self._events(model_id, scope, receive, send)
                return
            with self._registry.pinned(model_id):
                if action == "learn":
                    await self._serve("learn", self._learn, model_id, scope, receive, send)
                elif action == "predict":
                    await self._serve("predict", self._predict, model_id, scope, receive, send)
                else:
                    await self._pass_on(scope, receive, send)
            return
        if path == "/predict":
            await self._serve("predict", self._predict_by_query, "", scope, receive, send)
            return
        await self._pass_on(scope, receive, send)

    async def _serve(
        self,
        route: str,
        endpoint: Endpoint,
        model_id: str,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        began = time.perf_counter()
        status = 200
        body = None
        try:
            self._startup.check_ready()
            body, headers = await endpoint(model_id, scope, receive)
            if not isinstance(body, bytes):
                status = await answer_lines(send, body, headers, scope)
        except Exception as error:
            problem = problem_of(error, scope)
            status = problem.status
            await send_problem(send, problem, scope["path"])
        else:
            if isinstance(body, bytes):
                await send_json(send, body, headers, scope)
        finally:
            release_body(scope)
        seconds = time.perf_counter() - began
        self._telemetry.saw_request(scope["method"], route, status, seconds)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status, is_answered = 500, False

        async def watch(message: Any) -> None:
            nonlocal status, is_answered
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                is_answered = not message.get("more_body", False)
            is_long = len(message.get("body", b"")) > PIECE_BYTES
            await (send_in_pieces(send, message, scope) if is_long else send(message))

        try:
            await self._app(scope, limit_body(receive, self._settings.max_body_bytes, scope), watch)
        except Exception:
            # Starlette answers an unexpected exception with 500 and raises it again. uvicorn then
            # closes the connection, and the client's next request is reset.
            if not is_answered:
                raise
        finally:
            release_body(scope)
            route = getattr(scope.get("route"), "path", "unknown")
            seconds = time.perf_counter() - began
            self._telemetry.saw_request(scope["method"], route, status, seconds)

    async def _learn(self, model_id: str, scope: Scope, receive: Receive) -> Any:
        """POST /models/{id}/learn."""
        _check_method(scope, "POST")
        head = read_head(scope)
        query = read_query(scope, ("scores", "atomic"))
        wants_scores, atomic = read_flag(query, "scores"), read_flag(query, "atomic")
        source = read_source(head)
        model = await self._registry.get(model_id)
        headers = [(b"dualstream-durability", self._registry.store_status.durability)]
        if source is not None and atomic:
            raise invalid_source("a source moves over bad rows; leave out atomic=true")
        chunker = None if source is not None else self._chunker_of(head)
        if chunker is not None:
            pieces = body_pieces(receive, head, self._settings.max_upload_bytes, scope)
            body, is_long = await read_up_to(CHUNK_BYTES, pieces)
            if is_long:
                note_long(scope)
                check_streamable(head, wants_scores, atomic)
                upload = Upload(
                    self._registry,
                    model_id,
                    head,
                    query,
                    read_key(head.idempotency_key),
                    wants_scores,
                    limits_of(scope),
                )
                results = self._learn_chunks(upload, chunker, prepend(body, pieces), scope)
                return await _results_or_totals(head, upload, results, headers)
        else:
            body = await read_body(receive, head, self._settings.max_body_bytes, scope)
        self._admission.check(LEARN)
        if source is not None:
            batch = (model, source, head, body, wants_scores, limits_of(scope))
            result = await learn_from_source(self._registry, *batch)
            note_rows(scope, result.count + (result.rejected or 0))
            return one_line(result) if head.wants_lines else json_line(result), headers
        result, is_replayed = await self.learn_body(model, head, query, body, scope)
        if is_replayed:
            headers.append(REPLAYED)
        if head.wants_lines:
            return one_line(result), headers
        return json_line(result), headers

    async def learn_body(
        self, model: Model, head: Head, query: dict[str, str], body: bytes, scope: Scope
    ) -> tuple[Learned, bool]:
        """Learn the rows of a whole body. Returns the answer, and whether it repeats the first."""
        key, fingerprint = key_of(head, query, body)
        atomic = read_flag(query, "atomic")
        receipt, limits = None, limits_of(scope)
        while receipt is None:
            parsed = await parse(model, head, body, labelled=True)
            count_refused(self._telemetry, model, parsed)
            note_rows(scope, parsed.count)
            _refuse_without_rows(parsed, atomic)
            if limits is not None:
                await limits.admit_rows(parsed.count)
                limits = None
            request = await request_of(parsed, key, fingerprint, is_whole=atomic)
            try:
                receipt = await model.submit(request)
            except ModelChanged:  # deleted or replaced since it was loaded
                model = await self._registry.get(model.record.id)
        wants_scores = parsed.single or read_flag(query, "scores")
        return await responses.learned_of(model, parsed, request, receipt, wants_scores)

    def _chunker_of(self, head: Head) -> Chunker | None:
        """Chunker of a body that may be long enough to be learned in chunks; None without one."""
        is_short = head.content_length is not None and head.content_length <= CHUNK_BYTES
        if (
            is_short and head.content_encoding is None
        ) or self._settings.max_body_bytes < CHUNK_BYTES:
            return None
        kind, parameters = media_type(head.content_type)
        return chunker_of(kind, parameters.get("delimiter", "")) if kind in CHUNKERS else None

    async def _learn_chunks(
        self, upload: Upload, chunker: Chunker, pieces: AsyncIterator[bytes], scope: Scope
    ) -> AsyncIterator[Learned]:
        """The result of each chunk, then the totals."""
        so_far = 0
        memory = body_of(scope)
        self._uploads.add(upload)
        try:
            cut = chunks_of(pieces, chunker, self._settings.max_body_bytes, count_lines)
            async with aclosing(cut) as chunks:
                async with aclosing(upload.learn(chunks)) as learned:
                    async for result in learned:
                        memory.release(result.bytes - so_far)
                        so_far = result.bytes
                        yield result
            total = upload.result()
            note_rows(scope, total.count + (total.rejected or 0))
            yield total
        finally:
            self._uploads.discard(upload)

    async def _predict(self, model_id: str, scope: Scope, receive: Receive) -> Any:
        """GET and POST /models/{id}/predict."""
        if scope["method"] == "GET":
            query = read_row_query(scope, names_model=False)
            await admit_rows(scope, 1)
            return await self.predict_query(model_id, query)
        _check_method(scope, "POST")
        head = read_head(scope)
        query = read_query(scope, (*_OF_PREDICTIONS, *REMEMBER_PARAMETERS))
        model = await self._model_at(model_id, query)
        body = await read_body(receive, head, self._settings.max_body_bytes, scope)
        return await self.predict_body(model, head, query, body, scope)

    async def predict_body(
        self, model: Model, head: Head, query: dict[str, str], body: bytes, scope: Scope
    ) -> tuple[bytes, Headers]:
        """Predict the rows of a whole body."""
        wait = read_wait(query, model, self._settings.remember_s)
        if wait is None:
            parsed = await parse(model, head, body, labelled=False)
        else:
            parsed = await parse_rows_to_remember(model, head, body)
        _refuse_without_rows(parsed)
        await admit_rows(scope, parsed.count)
        if wait is None:
            answered, headers, _ = await self._score(model, parsed, query)
            return json_line(answered), headers
        kept: list[Kept] = []
        answered, headers, columns = await self._score(model, parsed, query, kept)
        served = (answered, columns, kept)
        await remember_rows(self._registry.journal, model, parsed, *served, wait)
        return json_line(answered), headers

    async def _predict_by_query(self, _: str, scope: Scope, receive: Receive) -> Any:
        """GET /predict: the query also names the model."""
        _check_method(scope, "GET")
        query = read_row_query(scope, names_model=True)
        await admit_rows(scope, 1)
        with self._registry.pinned(query["model"]):
            return await self.predict_query(query["model"], query)

    async def predict_query(self, model_id: str, query: dict[str, str]) -> tuple[bytes, Headers]:
        """Predict the row of a query."""
        model = await self._model_at(model_id, query)
        answered, headers, _ = await self._score(model, queried_row(model, query), query)
        return json_line(answered), headers

    async def _score(
        self, model: Model, parsed: ParsedRows, query: dict[str, str], kept: "_Kept" = None
    ) -> tuple[Any, Headers, Batch | None]:
        """The answer, its headers, and of remembered rows the columns of their past.

        Rows are remembered if there is a list for what they keep; see `scored`.
        """
        batch = as_batch([parsed.rows])
        explains = read_flag(query, "explain")
        if explains:
            check_few(parsed.count)
        state: Replica | LoadedVersion = model.replica
        if "version" in query:
            state = await self._versions.get(model, self._registry.journal, query["version"])
        top = read_count(query, "top")
        if top and model.row_schema.task != "multiclass":
            raise Problem(422, "invalid-query", "top is for models with task multiclass; omit it")
        answering = _answer(state, model, parsed, batch, explains, kept, top)
        # Explaining reads scratch arrays of the learner, which must not be used again until then.
        answered, seq, chain, served = await (
            run_to_completion(answering) if explains else answering
        )
        age_s = None if "version" in query else model.stale_s
        self._telemetry.saw_predictions(model.record.id, len(batch))
        if age_s is not None:
            responses.mark_stale(answered, age_s)
        return answered, responses.state_headers(seq, chain, age_s), served

    async def _model_at(self, model_id: str, query: dict[str, str]) -> Model:
        """The model, at `min_seq` or later. Raises Problem 503 if it does not reach `min_seq`."""
        model = await self._registry.get(model_id)
        min_seq = read_count(query, "min_seq")
        if model.replica.seq >= min_seq:
            return model
        return await self._registry.reach(model_id, min_seq)


_Answer = tuple[Predicted | PredictedMany, int, str, Batch | None]
"""Predictions, seq and chain of the state, and the rows with the columns of their past."""
_Kept: TypeAlias = "list[Kept] | None"
"""Gets what rows keep if they are remembered; None for a plain prediction."""


async def _answer(
    state: Replica | LoadedVersion,
    model: Model,
    parsed: ParsedRows,
    batch: Batch,
    explains: bool,
    kept: _Kept,
    top: int,
) -> _Answer:
    """Predictions by the current state, or by a version."""
    async with state.serving():
        learner, seq, chain = state.learner, state.seq, state.chain
        answered = await responses.scored(model, state, parsed, batch, kept, top)
        if explains:
            await add_explanations(model, learner, parsed, batch, answered)
        served = as_served(learner, batch) if kept is not None else None
        return answered, seq, chain, served


def _check_method(scope: Scope, allowed: str) -> None:
    if scope["method"] != allowed:
        raise not_allowed(scope["method"], scope["path"])


def _refuse_without_rows(parsed: ParsedRows, atomic: bool = False) -> None:
    """Raise Problem 422 unless there are good rows; with `atomic`, unless all are good."""
    if parsed.count == 0:
        raise Problem(422, "invalid-rows", responses.NO_ROWS)
    if parsed.errors and (atomic or not parsed.row_indices):
        raise responses.refusal(parsed, parsed.errors)


async def _results_or_totals(
    head: Head, upload: Upload, results: AsyncIterator[Learned], headers: Headers
) -> Any:
    """The results of all chunks as lines, or the last result (the totals)."""
    if head.wants_lines:
        return results, headers
    async for result in results:
        last = result
    if upload.is_replayed:
        headers.append(REPLAYED)
    return json_line(last), headers


def read_row_query(scope: Scope, names_model: bool) -> dict[str, str]:
    """The query of GET predict, which may have to name the model. Raises Problem 422."""
    allowed = ("x", *_OF_PREDICTIONS)
    query = read_query(scope, ("model", *allowed) if names_model else allowed, named="x.")
    if names_model and "model" not in query:
        raise Problem(422, "invalid-query", "the query parameter model is missing; send model=ID")
    return query


def queried_row(model: Model, query: dict[str, str]) -> ParsedRows:
    """The row that a query gives as `x` or as `x.NAME`. Raises Problem 422."""
    named = {name[2:]: value for name, value in query.items() if name.startswith("x.")}
    if bool(named) == ("x" in query):
        raise Problem(
            422,
            "invalid-query",
            "send a row as x=INDEX:VALUE,INDEX:VALUE or x.NAME=VALUE&x.NAME=VALUE",
        )
    if named:
        return parse_named_row(model.row_schema, named)
    return parse_query_row(model.row_schema, query["x"])

"""Short requests of all connections: learned and scored together, and answered without ASGI.

Requests of one row that arrive in one event-loop iteration, or while the rows before them are
learned, are parsed at once and become one request to the model's committer. There is no timer.
If some have an Idempotency-Key or a row with an id, each becomes a request to the committer, which
appends them together. A request with a sampled span or an error is parsed and submitted on its own.

The answers are those of the ASGI routes, because the same functions make them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from time import perf_counter
from typing import Any

from dualstream.service.api.learn_and_predict import (
    REPLAYED,
    FastRoutes,
    queried_row,
    read_row_query,
)
from dualstream.service.api.request_rows import is_parsed_inline, key_of
from dualstream.service.api.responses import (
    learned_of,
    learned_rows,
    predicted_row,
    scored_rows,
    state_headers,
)
from dualstream.service.codecs import ListedRows, ParsedRows, RowSchema, as_batch, parse_chunk
from dualstream.service.codecs.flat_rows import id_pointer_of
from dualstream.service.concurrency import ensure_task, start
from dualstream.service.http.access import AccessControl
from dualstream.service.http.exceptions_to_problems import problem_of
from dualstream.service.http.overload import REFUSE_AFTER_S, AdmissionControl, overloaded
from dualstream.service.http.rate_limits import limits_of
from dualstream.service.http.request_head import read_head, read_key
from dualstream.service.http.request_log import Note, RequestLog, note_of, note_rows
from dualstream.service.http.send import json_line
from dualstream.service.http.short_request import LEARN, ShortRequest
from dualstream.service.journal.protocol import ModelChanged
from dualstream.service.metrics import Telemetry
from dualstream.service.models.model import Model
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.models.waiting_requests import Ticket
from dualstream.service.observability.logs import REQUEST_ID
from dualstream.service.observability.tracing import SPAN
from dualstream.service.replica.requests import Receipt, Request
from dualstream.wire.problem_json import MEDIA_TYPE, Problem
from dualstream.wire.schemas import Learned

MAX_GROUP_BYTES, MAX_GROUP_ROWS = 32 * 1024, 256
"""Limits of what the event loop parses at once: escaped flat rows take some us a byte."""
_JSON, _NDJSON = b"application/json", "application/x-ndjson"
_KEY = b"idempotency-key"
_NAMED = ("x", "model")
Headers = Iterable[tuple[bytes, bytes]]


class Group:
    """Requests of one row each for one model, which are served together."""

    def __init__(self) -> None:
        self.requests: list[ShortRequest] = []
        self.bytes = 0
        self.ticket: Ticket | None = None
        """Of requests to learn."""

    def add(self, request: ShortRequest) -> None:
        self.requests.append(request)
        self.bytes += len(request.body)

    @property
    def is_full(self) -> bool:
        return self.bytes >= MAX_GROUP_BYTES or len(self.requests) >= MAX_GROUP_ROWS


class ShortRequests:
    """Answers the short requests of all connections of the process."""

    def __init__(
        self,
        routes: FastRoutes,
        registry: ModelRegistry,
        startup: Readiness,
        admission: AdmissionControl,
        telemetry: Telemetry,
        log: RequestLog,
        access: AccessControl | None,
    ) -> None:
        self._routes, self._registry, self._startup = routes, registry, startup
        self._admission, self._telemetry = admission, telemetry
        self._log, self._access = log, access
        # By model: the groups that wait, also while a group before them is learned; and the
        # predictions that arrived in this event-loop iteration.
        self._learns: dict[str, deque[Group]] = {}
        self._predictions: dict[str, Group] = {}

    def add(self, request: ShortRequest) -> None:
        """Answer a request whose body is there, now or later. Never raises."""
        note = self._log.begin(request.scope)
        try:
            self._add(request, note)
        except Exception as error:
            self._refuse(request, error)

    def _add(self, request: ShortRequest, note: Note) -> None:
        action, model_id = request.route
        if self._access is not None:
            _, refusal = self._access.check(request.scope)
            if refusal is not None:
                raise refusal
        self._startup.check_ready()
        is_plain = note.span is None
        if request.scope["method"] == "GET":
            request.query = query = read_row_query(request.scope, names_model=not model_id)
            model_id = model_id or query["model"]
            is_plain = is_plain and all(name in _NAMED or name[:2] == "x." for name in query)
        # Last, because what is admitted must be answered by what follows.
        if not self._admission.admits(action, request.connection, is_joined=True):
            loop = asyncio.get_running_loop()
            loop.call_later(REFUSE_AFTER_S, self._refuse, request, overloaded(action), False)
            return
        limits = limits_of(request.scope)
        is_admitted = limits is None or limits.admit_row()
        if not (is_plain and is_admitted):
            self._start_alone(request, model_id, is_admitted)
        elif action == LEARN:
            self._wait_to_learn(request, model_id)
        else:
            self._wait_to_predict(request, model_id)

    # -- one request -----------------------------------------------------------------------------

    def _start_alone(self, request: ShortRequest, model_id: str, is_admitted: bool = True) -> None:
        """Answer a request on its own. `is_admitted`: the rate limits have counted one row."""
        note = note_of(request.scope)
        context = copy_context()
        context.run(REQUEST_ID.set, note.request_id)
        context.run(SPAN.set, note.span)
        context.run(start, self._answer_alone(request, model_id, is_admitted))

    async def _answer_alone(self, request: ShortRequest, model_id: str, is_admitted: bool) -> None:
        limits = limits_of(request.scope)
        try:
            if limits is not None:
                if is_admitted:
                    limits.return_row()
                elif (refusal := await limits.admit()) is not None:
                    raise refusal
                if request.query is not None:
                    await limits.admit_rows(1)
            with self._registry.pinned(model_id):
                body, headers = await self._answer_of(request, model_id)
        except Exception as error:
            self._refuse(request, error)
        else:
            self._send(request, 200, _JSON, _lines(headers), body)
        finally:
            if request.route.action != LEARN:
                self._admission.end_burst()

    async def _answer_of(self, request: ShortRequest, model_id: str) -> tuple[bytes, Headers]:
        """The answer of the ASGI route, and its headers."""
        if request.query is not None:
            note_rows(request.scope, 1)
            await ensure_task()
            return await self._routes.predict_query(model_id, request.query)
        model = await self._registry.get(model_id)
        head, body, scope = read_head(request.scope), request.body, request.scope
        if request.route.action != LEARN:
            return await self._routes.predict_body(model, head, {}, body, scope)
        return self._learned(*await self._routes.learn_body(model, head, {}, body, scope))

    def _learned(self, result: Learned, is_replayed: bool) -> tuple[bytes, Headers]:
        headers = [(b"dualstream-durability", self._registry.store_status.durability)]
        return json_line(result), [*headers, REPLAYED] if is_replayed else headers

    def _refuse(self, request: ShortRequest, error: Exception, is_timed: bool = True) -> None:
        problem = problem_of(error, request.scope)
        body = problem.body(request.scope["path"], note_of(request.scope).request_id)
        headers = [(name.encode(), text.encode()) for name, text in problem.headers().items()]
        self._send(request, problem.status, MEDIA_TYPE.encode(), _lines(headers), body, is_timed)

    def _send(
        self,
        request: ShortRequest,
        status: int,
        kind: bytes,
        lines: bytes,
        body: bytes,
        is_timed: bool = True,
    ) -> None:
        """Send an answer; `lines` are headers. `is_timed`: admission control has not counted it."""
        scope = request.scope
        note = note_of(scope)
        seconds = perf_counter() - note.began
        self._log.end(scope, note, status, len(body), seconds)
        if is_timed:
            self._telemetry.saw_request(scope["method"], request.route.action, status, seconds)
        if self._log.is_draining:
            request.keep_alive = False
        head = b"content-type: %b\r\ncontent-length: %d\r\n%bx-request-id: %b\r\n" % (
            kind,
            len(body),
            lines,
            note.request_id.encode(),
        )
        request.answer(status, head, body)

    # -- learning --------------------------------------------------------------------------------

    def _wait_to_learn(self, request: ShortRequest, model_id: str) -> None:
        groups = self._learns.get(model_id)
        if groups is None:
            groups = self._learns[model_id] = deque()
            _soon(self._gather_learns, model_id, 1)
        if not groups or groups[-1].is_full:
            groups.append(Group())
        group = groups[-1]
        group.add(request)
        if group.ticket is None:
            group.ticket = self._registry.waiting.enter()
        self._registry.waiting.count(group.ticket, len(group.requests))

    def _gather_learns(self, model_id: str, counted: int) -> None:
        """Learn the next group once an event-loop iteration added no requests to those `counted`.

        Requests of several connections that arrive together are read one after the other.
        """
        groups = self._learns[model_id]
        if not groups:
            del self._learns[model_id]
            return
        count = len(groups[0].requests)
        if counted < count and not groups[0].is_full:
            _soon(self._gather_learns, model_id, count)
        else:
            start(self._learn(model_id, groups.popleft()))

    async def _learn(self, model_id: str, group: Group) -> None:
        requests, ticket = group.requests, group.ticket
        assert ticket is not None
        try:
            if len(requests) == 1 and _KEY in requests[0].headers:  # no row to share a parse with
                self._start_alone(requests[0], model_id)
                return
            with self._registry.pinned(model_id):
                model = await self._registry.get(model_id)
                parsed, requests = self._parsed(model, requests, labelled=True)
                self._registry.waiting.count(ticket, len(requests))
                if _have_keys(requests, parsed):
                    await self._learn_each(model, requests, parsed, ticket)
                elif requests:
                    await self._learn_rows(model, requests, parsed, ticket)
        except ModelChanged:  # deleted or replaced since it was loaded; nothing is journalled
            for request in requests:
                self._start_alone(request, model_id)
        except Exception as error:
            for request in requests:
                self._refuse(request, error)
        finally:
            self._registry.waiting.leave(ticket)
            _soon(self._gather_learns, model_id, 0)

    async def _learn_rows(
        self, model: Model, requests: list[ShortRequest], parsed: ParsedRows, ticket: Ticket
    ) -> None:
        rows = Request.of(parsed.rows, None, None, parsed.batch_names)
        receipt = await model.submit(rows, ticket)
        model.mark_names_journalled(parsed, receipt)
        lines = _lines([(b"dualstream-durability", self._registry.store_status.durability)])
        for request, result in zip(requests, learned_rows(model, parsed, receipt), strict=True):
            self._send(request, 200, _JSON, lines, json_line(result))

    async def _learn_each(
        self, model: Model, requests: list[ShortRequest], parsed: ParsedRows, ticket: Ticket
    ) -> None:
        """Learn rows that have keys or ids: each is a request of one append."""
        rows, schema = list(parsed.singles()), model.row_schema
        submitted = []
        for request, row in zip(requests, rows, strict=True):
            if isinstance(row.rows, ListedRows) and row.rows.ids and schema.columns is not None:
                row.id_pointer = id_pointer_of(schema, request.body)
            key, fingerprint = key_of(read_head(request.scope), {}, request.body)
            submitted.append(Request.of(row.rows, key, fingerprint))
        receipts = await model.submit_each(submitted, ticket)
        for learn in zip(requests, rows, submitted, receipts, strict=True):
            start(self._answer_learn(model, *learn))

    async def _answer_learn(
        self,
        model: Model,
        request: ShortRequest,
        row: ParsedRows,
        submitted: Request,
        receipt: Receipt | BaseException,
    ) -> None:
        try:
            if isinstance(receipt, BaseException):
                raise receipt
            body, headers = self._learned(
                *await learned_of(model, row, submitted, receipt, wants_scores=True)
            )
        except ModelChanged:
            self._start_alone(request, model.record.id)
        except Exception as error:
            self._refuse(request, error)
        else:
            self._send(request, 200, _JSON, _lines(headers), body)

    # -- predictions -----------------------------------------------------------------------------

    def _wait_to_predict(self, request: ShortRequest, model_id: str) -> None:
        group = self._predictions.get(model_id)
        if group is None:
            group = self._predictions[model_id] = Group()
            _soon(self._gather_predictions, model_id, group, 1)
        group.add(request)
        if group.is_full:
            del self._predictions[model_id]

    def _gather_predictions(self, model_id: str, group: Group, counted: int) -> None:
        """Predict once an event-loop iteration added no requests to those `counted`."""
        count, is_open = len(group.requests), self._predictions.get(model_id) is group
        if counted < count and is_open:
            _soon(self._gather_predictions, model_id, group, count)
            return
        if is_open:
            del self._predictions[model_id]
        start(self._predict(model_id, group.requests))

    async def _predict(self, model_id: str, requests: list[ShortRequest]) -> None:
        try:
            with self._registry.pinned(model_id):
                model = await self._registry.get(model_id)
                requests, rows = self._rows_to_predict(model, requests)
                if requests:
                    await self._predict_rows(model, requests, rows)
        except Exception as error:
            for request in requests:
                self._refuse(request, error)
        finally:
            self._admission.end_burst()

    def _rows_to_predict(
        self, model: Model, requests: list[ShortRequest]
    ) -> tuple[list[ShortRequest], list[ParsedRows]]:
        """The requests in the order of their rows; the others are answered."""
        parsed, joined = self._parsed(
            model, [one for one in requests if one.query is None], labelled=False
        )
        rows = [parsed] if joined else []
        for request in requests:
            if request.query is not None:
                try:
                    rows.append(queried_row(model, request.query))
                except Exception as error:
                    self._refuse(request, error)
                else:
                    note_rows(request.scope, 1)
                    joined.append(request)
        return joined, rows

    async def _predict_rows(
        self, model: Model, requests: list[ShortRequest], rows: list[ParsedRows]
    ) -> None:
        batch = as_batch([one.rows for one in rows])
        replica = model.replica
        async with replica.serving():
            seq, chain = replica.seq, replica.chain
            scores, labels, probabilities, fields = await scored_rows(model, replica, batch)
        self._telemetry.saw_predictions(model.record.id, len(batch))
        age_s = model.stale_s
        lines = _lines(state_headers(seq, chain, age_s))
        for row, request in enumerate(requests):
            probability = None if probabilities is None else probabilities[row]
            result = predicted_row(model, seq, scores[row], labels[row], probability, age_s)
            for field in fields:
                setattr(result, field.one, field.values[row])
            self._send(request, 200, _JSON, lines, json_line(result))

    # -- rows ------------------------------------------------------------------------------------

    def _parsed(
        self, model: Model, requests: list[ShortRequest], labelled: bool
    ) -> tuple[ParsedRows, list[ShortRequest]]:
        """The good rows of requests that were joined, and these; the others are answered alone."""
        schema, model_id = model.row_schema, model.record.id
        joined = []
        for request in requests:
            if _may_join(schema, request, labelled):
                joined.append(request)
            else:
                self._start_alone(request, model_id)
        # A line feed outside of strings may be a carriage return; in strings JSON has neither.
        text = b"\n".join([request.body.replace(b"\n", b"\r") for request in joined])
        parsed = parse_chunk(schema, _NDJSON, text, labelled=labelled)
        for error in parsed.errors:
            self._start_alone(joined[error.index], model_id)
        joined = [joined[index] for index in parsed.row_indices]
        for request in joined:
            note_rows(request.scope, 1)
        return parsed, joined


def _may_join(schema: RowSchema, request: ShortRequest, labelled: bool) -> bool:
    """May the body be parsed as a line among others: is it an object, probably a row?"""
    body = request.body
    if body[:1] != b"{" or not is_parsed_inline(schema, body):
        return False
    if labelled and _KEY in request.headers:
        try:
            read_key(request.headers[_KEY])
        except Problem:
            return False
    return schema.columns is None or b'"samples"' not in body[:64]


def _have_keys(requests: list[ShortRequest], parsed: ParsedRows) -> bool:
    """Does a request have an Idempotency-Key, or a row an id?"""
    has_ids = isinstance(parsed.rows, ListedRows) and bool(parsed.rows.ids)
    return has_ids or any([_KEY in request.headers for request in requests])


def _soon(gather: Callable[..., None], *group: Any) -> None:
    """Gather in the next event-loop iteration, outside of the span and id of any request."""
    asyncio.get_running_loop().call_soon(gather, *group, context=Context())


def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])

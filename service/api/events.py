"""GET /models/{id}/events: progress of a model as server-sent events.

A listener does not keep the model in memory. The model is loaded once, when the stream starts, and
can be evicted afterwards. While it is not loaded, the stream polls the store for its seq.
"""

import asyncio
import time
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from dualstream.service.api.views import NULL_REASON, has_null, staleness
from dualstream.service.http.access import not_allowed
from dualstream.service.http.connection_limits import EVENT_STREAM
from dualstream.service.http.exceptions_to_problems import problem_of
from dualstream.service.http.request_head import read_count, read_query
from dualstream.service.http.send import send_problem
from dualstream.service.journal.protocol import JournalError, ModelRecord, UnknownModel
from dualstream.service.metrics import Telemetry
from dualstream.service.models.model import Model
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.solvers import Certificate, Learner
from dualstream.solvers.protocols import sparse_support
from dualstream.wire.problem_json import Problem

DEFAULT_INTERVAL_MS = 500
MIN_MS, MAX_MS = 100, 60_000
HEARTBEAT_S = 15.0
"""Interval of comments on a silent stream, and of polls of the store for evicted models."""
MAX_CERTIFICATE_AGE_S = 2.0
"""Maximum age of the certificate in an event, for models with more than MANY_ROWS rows."""
MANY_ROWS = 10_000
MAX_LISTENERS = 100
"""Open streams of events, per worker."""
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Events:
    """ASGI endpoint of event streams; at most MAX_LISTENERS at a time."""

    def __init__(self, registry: ModelRegistry, startup: Readiness, telemetry: Telemetry) -> None:
        self._registry = registry
        self._startup = startup
        self._telemetry = telemetry
        self._listeners: set[asyncio.Event] = set()

    def stop(self) -> None:
        """End all streams, at shutdown."""
        for ending in self._listeners:
            ending.set()

    async def __call__(self, model_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        began, ending = time.perf_counter(), asyncio.Event()
        try:
            self._startup.check_ready()
            if scope["method"] != "GET":
                raise not_allowed(scope["method"], scope["path"])
            interval_s = _read_interval(scope)
            if len(self._listeners) >= MAX_LISTENERS:
                detail = (
                    f"{MAX_LISTENERS} event streams are open in this worker, the maximum; close one"
                )
                raise Problem(503, "too-many-listeners", detail, retry_after_s=10)
            self._listeners.add(ending)
            with self._registry.pinned(model_id):
                model = await self._registry.get(model_id)
        except Exception as error:
            self._listeners.discard(ending)
            problem = problem_of(error, scope)
            await send_problem(send, problem, scope["path"])
            seconds = time.perf_counter() - began
            self._telemetry.saw_request(scope["method"], "events", problem.status, seconds)
            return
        seconds = time.perf_counter() - began
        self._telemetry.saw_request("GET", "events", 200, seconds)
        source = _EventSource(self._registry, model.record, _last_event_id(scope), self._telemetry)
        del model  # a listener holds no reference, so that the model can be evicted
        scope[EVENT_STREAM] = True
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await _send_all(source, interval_s, ending, receive, send)
        finally:
            self._listeners.discard(ending)


async def _send_all(
    source: "_EventSource", interval_s: float, ending: asyncio.Event, receive: Receive, send: Send
) -> None:
    """Send events until the model is deleted, the client disconnects or the server stops."""
    disconnected = asyncio.create_task(_disconnected(receive))
    stopping = asyncio.create_task(ending.wait())
    silent_since = time.monotonic()
    try:
        while not (disconnected.done() or stopping.done() or source.is_over):
            event = await source.next_event()
            if event is None and time.monotonic() - silent_since >= HEARTBEAT_S:
                event = b":\n\n"
            if event is not None:
                silent_since = time.monotonic()
                await send({"type": "http.response.body", "body": event, "more_body": True})
            if not source.is_over:
                wait_for = [disconnected, stopping]
                await asyncio.wait(wait_for, timeout=interval_s, return_when="FIRST_COMPLETED")
        await send({"type": "http.response.body", "body": b""})
    finally:
        disconnected.cancel()
        stopping.cancel()


class _EventSource:
    """Events of one model for one listener; remembers the last state that was sent."""

    def __init__(
        self, registry: ModelRegistry, record: ModelRecord, last: str | None, telemetry: Telemetry
    ) -> None:
        self._registry = registry
        self._telemetry = telemetry
        self._delays = telemetry.label_delays(record.id)
        self._id, self._incarnation = record.id, record.incarnation
        self._last = last
        self._counted: tuple[int, float] | None = None
        self._asked_at = 0.0
        self.is_over = False

    async def next_event(self) -> bytes | None:
        """The next event; None if the state has not changed."""
        model = self._registry.find(self._id)
        if model is None:
            return await self._stored()
        self._asked_at = 0.0
        if model.record.incarnation != self._incarnation:
            return self._deleted()
        if model.replica.is_forked or _tag(model.replica.seq, model.replica.chain) == self._last:
            return None
        try:
            with self._registry.pinned(self._id):
                return await self._progress(model)
        except JournalError:  # the replica has diverged
            return None

    async def _progress(self, model: Model) -> bytes:
        replica = model.replica
        before = replica.certificate
        takes_long = before is not None and before.rows > MANY_ROWS
        certificate = await replica.certify(MAX_CERTIFICATE_AGE_S if takes_long else 0.0)

        def read() -> tuple[dict[str, Any], str]:
            samples, now = replica.learner.samples, time.monotonic()
            summary = replica.progress.summary()
            data = {
                "model": self._id,
                "seq": replica.seq,
                "samples": samples,
                "rejected": replica.rejected,
                "rows_per_second": self._rate(samples, now),
                "label_delay_s": self._label_delay(),
                "nonzeros": replica.nonzeros(),
                "support": _support_of(replica.learner),
                "since_start": summary["since_start"],
                "rolling": summary["rolling"],
                "drift": summary["drift"],
                **replica.parts.progress(replica.seq),
                "certificate": None if certificate is None else _gap_of(certificate),
                **staleness(model),
            }
            self._counted = samples, now
            return data, _tag(replica.seq, replica.chain)

        return self._event("progress", *await replica.view(read))

    def _rate(self, samples: int, now: float) -> float | None:
        """Rows learned per second since the last event; None first, or after a rollback."""
        before, at = self._counted or (samples, now)
        if samples < before or now <= at:
            return None
        return round((samples - before) / (now - at), 1)

    def _label_delay(self) -> float | None:
        """Mean delay of labels since the last event, in seconds; None without labels."""
        (before, waited), now = self._delays, self._telemetry.label_delays(self._id)
        self._delays = now
        return round((now[1] - waited) / (now[0] - before), 3) if now[0] > before else None

    async def _stored(self) -> bytes | None:
        """Event of a model that is not in memory: its seq, or that it is deleted."""
        now = time.monotonic()
        if self._asked_at and now - self._asked_at < HEARTBEAT_S:
            return None
        self._asked_at, self._counted = now, None
        try:
            record = await self._registry.journal.get(self._id)
        except UnknownModel:
            return self._deleted()
        except JournalError:
            return None
        if record.incarnation != self._incarnation:
            return self._deleted()
        tag = _tag(record.seq, record.chain)
        if tag == self._last:
            return None
        return self._event("progress", {"model": self._id, "seq": record.seq}, tag)

    def _deleted(self) -> bytes:
        self.is_over = True
        return self._event("deleted", {"model": self._id}, "")

    def _event(self, kind: str, data: dict[str, Any], tag: str) -> bytes:
        self._last = tag
        body = msgspec.json.encode(data)
        return b"event: %s\nid: %s\ndata: %s\n\n" % (kind.encode(), tag.encode(), body)


def _gap_of(certificate: Certificate) -> dict[str, Any]:
    names = ("primal", "dual", "gap", "relative_gap", "estimate")
    shown = {name: getattr(certificate, name) for name in names}
    return shown | ({"reason": NULL_REASON} if has_null(shown) else {})


def _support_of(learner: Learner) -> dict[str, Any] | None:
    """Size and stability of the support; None for models that do not track it."""
    support = sparse_support.support_of(learner)
    if support is None:
        return None
    return {
        "features": len(support.features),
        "unchanged_since": support.unchanged_since,
        "changes_per_1000": support.changes_per_1000,
    }


def _tag(seq: int, chain: str) -> str:
    return f"{seq}-{chain[:8]}"


def _read_interval(scope: Scope) -> float:
    """Minimum interval of events in seconds. Raises Problem 422."""
    query = read_query(scope, ("every_ms",))
    every_ms = read_count(query, "every_ms") if query else DEFAULT_INTERVAL_MS
    if not MIN_MS <= every_ms <= MAX_MS:
        detail = f"every_ms must be between {MIN_MS} and {MAX_MS}, got {every_ms}"
        raise Problem(422, "invalid-query", detail)
    return every_ms / 1000


def _last_event_id(scope: Scope) -> str | None:
    """`Last-Event-ID` of a client that reconnects: this state is not sent again."""
    header = dict(scope["headers"]).get(b"last-event-id")
    return None if header is None else header.decode("latin-1")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Traces by OpenTelemetry: a span for each sampled request, with children for its steps.

Tracing is on if a standard variable names an endpoint. The SDK reads the other variables `OTEL_*`
itself. One thread per process sends the spans by OTLP over HTTP, so a process that forks starts
tracing afterwards.
"""

import os
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

from dualstream import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_STOP_S = 5
"""Time that the last spans may take to be sent."""
_LOW_BITS = (1 << 64) - 1

Attributes: TypeAlias = dict[str, str | int | None]


class RequestSpan:
    """The span of one request that is recorded."""

    __slots__ = ("_context", "_span", "_tracer", "trace_id")

    def __init__(self, tracer: "Tracer", span: "Span") -> None:
        from opentelemetry import trace

        self._tracer, self._span = tracer, span
        self._context = trace.set_span_in_context(span)
        self.trace_id = trace.format_trace_id(span.get_span_context().trace_id)

    def child(self, name: str) -> "Span":
        """Start the span of a step."""
        return self._tracer.start_span(name, self._context)

    def end(self, name: str, attributes: Attributes, is_error: bool) -> None:
        """End the span under this name. Attributes that are None are left out."""
        from opentelemetry.trace import StatusCode

        self._span.update_name(name)
        for key, value in attributes.items():
            if value is not None:
                self._span.set_attribute(key, value)
        if is_error:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


SPAN: ContextVar[RequestSpan | None] = ContextVar("span", default=None)
"""Span of the request that runs; None if it is not recorded, and in background work."""


def start_child(name: str) -> "Span | None":
    """Start the span of a step of the request that runs; None if it is not recorded."""
    request = SPAN.get()
    return None if request is None else request.child(name)


class LearnSpans:
    """Two steps of a learn request: `append` until its rows are journalled, then `apply`."""

    def __init__(self, request: RequestSpan, then: Callable[[], None] | None) -> None:
        self._request, self._then = request, then
        self._step = request.child("append")

    def on_journalled(self) -> None:
        """End `append` and begin `apply`, then call `then`."""
        if self._step.is_recording():  # else the client left before the append was answered
            self._step.end()
            self._step = self._request.child("apply")
        if self._then is not None:
            self._then()

    def end(self) -> None:
        """End the step under way."""
        self._step.end()


class Tracing:
    """Spans of this process, and the thread that sends them. Call `stop` at its end."""

    def __init__(self) -> None:
        from opentelemetry import propagate
        from opentelemetry.context import Context
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import Decision
        from opentelemetry.trace import SpanKind

        named = Resource.create({"service.name": "dualstream", "process.pid": os.getpid()})
        resource = named.merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME wins
        self._next_trace_id, self._drawn = RandomIdGenerator().generate_trace_id, 0

        class Ids(RandomIdGenerator):
            """The trace id that was drawn, else a new one."""

            def generate_trace_id(_) -> int:
                return self._drawn or self._next_trace_id()

        self._provider = TracerProvider(
            resource=resource, shutdown_on_exit=False, id_generator=Ids()
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("dualstream", __version__)
        self._extract, self._no_parent = propagate.extract, Context()
        # The headers of OTEL_PROPAGATORS: `traceparent`, `tracestate` and `baggage` by default.
        self._headers = {name.encode() for name in propagate.get_global_textmap().fields}
        self._kind, self._sampler, self._drop = (
            SpanKind.SERVER,
            self._provider.sampler,
            Decision.DROP,
        )
        # TraceIdRatioBased, also as the root of ParentBased; other samplers have no bound.
        root = getattr(self._sampler, "_root", self._sampler)
        self._bound = getattr(root, "bound", _LOW_BITS + 1)

    def begin(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpan | None:
        """Start the span of a request, as a child of its `traceparent`; None if not sampled."""
        own = self._headers
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in own}
        parent = self._extract(carrier) if carrier else self._no_parent
        if not carrier and not self._draw(method):
            return None
        span = self._tracer.start_span(method, parent, self._kind)
        self._drawn = 0
        if not span.is_recording():
            return None
        return RequestSpan(self._tracer, span)

    def _draw(self, method: str) -> bool:
        """Draw the id of a new trace. Is it sampled? A span that is dropped costs 10 us more."""
        drawn = self._next_trace_id()
        if drawn & _LOW_BITS >= self._bound:
            return False
        result = self._sampler.should_sample(self._no_parent, drawn, method, self._kind)
        is_kept = result.decision is not self._drop
        self._drawn = drawn if is_kept else 0
        return is_kept

    def stop(self) -> None:
        """Send the spans that wait. Blocks for _STOP_S at most."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(_STOP_S)


def is_tracing_wanted() -> bool:
    """Does a variable name an endpoint? Raises ValueError if OpenTelemetry cannot be used."""
    named = [name for name in _ENDPOINTS if os.environ.get(name)]  # noqa: TID251 - of the standard
    if not named:
        return False
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.propagate
        import opentelemetry.sdk.trace.export  # noqa: F401
    except ImportError as missing:
        raise ValueError(
            f"{named[0]} is set, but {missing.name} is not installed; "
            "run pip install 'dualstream[otel]', or unset the variable"
        ) from None
    except ValueError as wrong:  # the import looks up the names
        raise ValueError(f"OTEL_PROPAGATORS: {wrong}") from None
    return True

"""Spans of a real server, received by OTLP over HTTP, and the trace that the client passes on."""

import asyncio
import contextvars
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider

from dualstream.client import AsyncClient, Client
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.http.access import requirement_of
from dualstream.service.http.request_log import RequestLog
from dualstream.service.observability.tracing import SPAN, LearnSpans, Tracing
from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings
from dualstream.wire.chunking.chunks import CHUNK_BYTES
from tests.service.conftest import SPEC

ROW = {"x": {"1": 1.0}, "y": 1}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "given"}


class Collector:
    """Receives spans at /v1/traces."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.processes: dict[str, dict[str, object]] = {}
        """Resource attributes by the span's id."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            collector.processes[span.span_id.hex()] = values(resource.resource)
                            collector.spans.append(span)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "60000",  # spans arrive because the server flushes them
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: Span) -> list[str]:
        """Names of the spans below this one, by their start."""
        results = [span for span in self.spans if span.parent_span_id == parent.span_id]
        for child in results:
            assert child.trace_id == parent.trace_id
            assert parent.start_time_unix_nano <= child.start_time_unix_nano
            assert child.end_time_unix_nano <= parent.end_time_unix_nano
        return [one.name for one in sorted(results, key=lambda one: one.start_time_unix_nano)]


def values(owner) -> dict[str, object]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in owner.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.close()


def test_requests_and_their_steps_have_spans(collector: Collector, tmp_path: Path):
    log = tmp_path / "log"
    flags = ["--workers", "2", "--log-format", "json", "--access-log", "all"]
    with log.open("w") as stderr:
        store = f"sqlite:///{tmp_path / 'a.db'}"
        with ServerProcess(store, flags, env=collector.env, stderr=stderr) as server:
            with httpx.Client(base_url=server.url, timeout=60) as http:
                http.put("/models/m", json=SPEC).raise_for_status()
                rows = [ROW, ROW, {"x": 0}]
                http.post("/models/m/learn", json=rows, headers=SAMPLED).raise_for_status()
                http.post("/models/m/predict", json={"x": {"1": 1.0}}).raise_for_status()
                lines = json.dumps({**ROW, "weight": 1}).encode().ljust(2000) + b"\n"
                long = lines * (2 * CHUNK_BYTES // len(lines))
                kind = {"content-type": "application/x-ndjson", "x-request-id": "long"}
                http.post("/models/m/learn", content=long, headers=kind).raise_for_status()
                http.get("/predict?model=m&x=1:31337").raise_for_status()
                assert http.get("/models/none/weights").status_code == 404
                assert http.get("/nowhere").status_code == 404
                http.head("/models/m").raise_for_status()
                unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
                http.get("/livez", headers=unsampled).raise_for_status()
    servers = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert len(servers) == 8  # one for each sampled request
    learns = collector.named("POST /models/{model_id}/learn")
    learn, upload = sorted(learns, key=lambda one: one.start_time_unix_nano)
    assert (learn.trace_id.hex(), learn.parent_span_id.hex()) == (TRACE, PARENT)
    assert values(learn) == {
        "http.request.method": "POST",
        "http.route": "/models/{model_id}/learn",
        "http.response.status_code": 200,
        "url.path": "/models/m/learn",
        "dualstream.model": "m",
        "dualstream.rows": 3,
        "dualstream.request_id": "given",
    }
    assert collector.children(learn) == ["append", "apply"]
    assert values(upload)["dualstream.request_id"] == "long"
    steps = Counter(collector.children(upload))
    assert steps.keys() == {"append", "apply"} and steps["append"] == steps["apply"] >= 2
    (predict,) = collector.named("POST /models/{model_id}/predict")
    assert collector.children(predict) == ["score"] and not predict.parent_span_id
    (by_query,) = collector.named("GET /predict")
    assert values(by_query)["dualstream.model"] == "m" and "31337" not in str(collector.spans)
    (missing,) = collector.named("GET /models/{model_id}/weights")
    assert values(missing)["http.response.status_code"] == 404
    assert missing.status.code == Status.STATUS_CODE_UNSET  # the client's error
    (nowhere,) = collector.named("GET")
    assert "http.route" not in values(nowhere)
    assert len(collector.named("HEAD /models/{model_id}")) == 1
    assert {process["service.name"] for process in collector.processes.values()} == {"dualstream"}
    # Each worker has its own exporter; threads of the parent do not survive its fork.
    pids = {process["process.pid"] for process in collector.processes.values()}
    assert pids and server.process.pid not in pids
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {one.get("trace_id") for one in lines if one.get("request_id") == "given"} == {TRACE}
    assert not any("trace_id" in one for one in lines if one.get("path") == "/livez")


def test_nothing_is_sent_without_sampling_and_a_client_can_ask_for_it(
    collector: Collector, tmp_path: Path
):
    async def predict(url: str) -> None:
        async with AsyncClient(url) as client:
            await client.predict("m", {"1": 1.0})

    env = {**collector.env, "OTEL_TRACES_SAMPLER": "parentbased_always_off"}
    tracer = TracerProvider().get_tracer("test")
    with ServerProcess(f"sqlite:///{tmp_path / 'a.db'}", env=env) as server:
        with Client(server.url) as client:
            client.create("m", SPEC)
            client.learn("m", [{"1": 1.0}], [1])
            with tracer.start_as_current_span("caller") as caller:
                client.learn("m", [{"1": 1.0}], [1])
                asyncio.run(predict(server.url))
                with closing(client.events("m")) as events:
                    assert next(events)
    requests = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    requests.sort(key=lambda one: one.start_time_unix_nano)
    assert [(one.name.split("/")[-1], collector.children(one)) for one in requests] == [
        ("learn", ["append", "apply"]),
        ("predict", ["score"]),
        ("events", []),
    ]
    context = caller.get_span_context()
    for one in requests:
        assert one.trace_id.hex() == trace.format_trace_id(context.trace_id)
        assert one.parent_span_id.hex() == trace.format_span_id(context.span_id)


def test_a_ratio_of_the_traces_is_sampled_by_their_ids(collector: Collector, monkeypatch):
    """As the specification of TraceIdRatioBased: the low 64 bits are below the ratio."""
    ratio = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    for name, value in {**collector.env, **ratio}.items():
        monkeypatch.setenv(name, value)
    tracing, run = Tracing(), contextvars.copy_context().run
    begun = [run(tracing.begin, "POST", [(b"host", b"a")]) for _ in range(2000)]
    broken = run(tracing.begin, "POST", [(b"traceparent", b"00-0-0-01")])
    kept = [one for one in begun if one is not None]
    ids = {one.trace_id for one in kept}
    assert 400 < len(kept) < 600 and len(ids) == len(kept)
    assert all(int(one, 16) & (1 << 64) - 1 < 1 << 62 for one in ids)
    assert broken is None or broken.trace_id not in ids
    for one in kept:
        one.end("POST", {}, False)
    tracing.stop()
    assert {one.trace_id.hex() for one in collector.spans} >= ids


def test_the_server_does_not_start_without_the_extra(monkeypatch: pytest.MonkeyPatch):
    module = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, module, None)  # an import fails
    create_app(Settings(store="sqlite:///:memory:"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    with pytest.raises(ValueError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT is set.*dualstream\[otel\]"):
        create_app(Settings(store="sqlite:///:memory:"))


def test_the_server_does_not_start_with_unknown_propagators(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "opentelemetry.propagate")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv("OTEL_PROPAGATORS", "tracecontext,b4")
    with pytest.raises(ValueError, match=r"OTEL_PROPAGATORS: Propagator b4 not found"):
        create_app(Settings(store="sqlite:///:memory:"))


@pytest.mark.parametrize(("status", "code"), [(499, "UNSET"), (500, "ERROR"), (503, "ERROR")])
def test_an_error_of_the_server_marks_the_span(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, status: int, code: str
):
    for name, value in collector.env.items():
        monkeypatch.setenv(name, value)

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    requests = RequestLog(app, "off", requirement_of)
    requests.tracing = tracing = Tracing()
    get = httpx.AsyncClient(transport=httpx.ASGITransport(requests)).get("http://test/livez")
    assert asyncio.run(get).status_code == status
    tracing.stop()
    (span,) = collector.spans
    assert span.name == "GET /livez" and span.status.code == Status.StatusCode.Value(
        f"STATUS_CODE_{code}"
    )


def test_learning_ends_its_spans_when_the_client_left_first(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    for name, value in collector.env.items():
        monkeypatch.setenv(name, value)
    tracing, called = Tracing(), []
    context = contextvars.copy_context()
    request = context.run(tracing.begin, "POST", [])
    assert request is not None and SPAN.get() is None
    spans = LearnSpans(request, lambda: called.append(1))
    spans.end()
    spans.on_journalled()  # the append is answered later
    tracing.stop()
    assert called == [1] and [span.name for span in collector.spans] == ["append"]

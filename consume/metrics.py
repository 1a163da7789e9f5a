"""Metrics of a consumer process in the Prometheus text format, and their HTTP server."""

import time
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from dualstream.client import BadInput
from dualstream.consume.counters import Counters

TEXT = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]
# Attribute of Counters, and its help text.
_TOTALS = {
    "learned": "Rows learned, or observed.",
    "predicted": "Rows without a label that were scored.",
    "duplicates": "Rows that were learned before, by this process or another one.",
    "refused": "Dead letters: messages that are no rows, and rows that the server refused.",
    "paused": "Rows that the model's guard has put into quarantine.",
    "moved": "Batches refused because another consumer was faster, or the server has lost rows.",
    "waits": "Pauses because the server or the dead-letter queue did not answer, or labels wait.",
}


def exposition(counters: Counters, model: str, now_ms: float) -> str:
    """All families as text. `now_ms` is since 1970."""
    of_model = {"model": model}
    lines: list[str] = []
    for name, meaning in _TOTALS.items():
        total = [(of_model, float(getattr(counters, name)))]
        lines += _family(f"dualstream_consume_{name}_total", "counter", meaning, total)
    offsets, rows, seconds = list[Sample](), list[Sample](), list[Sample]()
    for source, partition in sorted(counters.partitions.items()):
        labels = of_model | {"source": source}
        if isinstance(partition.offset, int):
            offsets.append((labels, partition.offset))
        if partition.lag_rows is not None:
            rows.append((labels, partition.lag_rows))
        if partition.lag_rows == 0:
            seconds.append((labels, 0.0))
        elif partition.timestamp_ms is not None:
            seconds.append((labels, max(0.0, (now_ms - partition.timestamp_ms) / 1000)))
    lines += _family("dualstream_consume_offset", "gauge", "Next offset to learn.", offsets)
    lines += _family(
        "dualstream_consume_lag_rows", "gauge", "Messages after the next offset.", rows
    )
    meaning = "Age of the oldest message that is not learned; 0 at the end of the partition."
    lines += _family("dualstream_consume_lag_seconds", "gauge", meaning, seconds)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, meaning: str, samples: Sequence[Sample]) -> Iterable[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{name}{{{pairs}}} {value:.17g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsServer:
    """Serves `/metrics` in a thread of its own. Raises BadInput if the port is in use."""

    def __init__(self, text: Callable[[], str], host: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                is_metrics = self.path.partition("?")[0] == "/metrics"
                body = text().encode() if is_metrics else b"see /metrics\n"
                self.send_response(200 if is_metrics else 404)
                self.send_header("Content-Type", TEXT if is_metrics else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Requests are not logged."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as wrong:
            raise BadInput(
                f"--metrics-port {port}: cannot listen on {host}: {wrong.strerror}"
            ) from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def now_ms() -> float:
    """Milliseconds since 1970."""
    return time.time() * 1000

"""Prometheus counters and histograms of a process. Several workers on one port are summed."""

from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from dualstream.service.metrics.model_filter import OTHER, ModelFilter

_REQUEST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_STALL_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LOAD_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 25.0)
_DELAY_S = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86_400.0, 7 * 86_400.0)
_APPEND_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
_GROUP_ROWS = (1, 2, 5, 10, 20, 50, 100, 500, 1000, 4096, 100_000)

BY_MODEL = {
    "predictions": "Rows scored for prediction requests.",
    "refused_rows": "Rows refused before the journal, because they are malformed.",
    "forks": "Replicas discarded because the journal does not lead on from them.",
    "lost_records": "Records applied in this process that the store has lost since.",
    "remembered_expired": "Rows that expired while they waited for their labels.",
    "refits": "Refits computed in this process whose result was applied.",
    "refits_unused": "Refits started in this process whose result was not applied.",
}
"""Counters by model."""
METHODS = frozenset(("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"))
"""Methods with their own series. HEAD is answered as GET; a client can send any other."""

MAX_COLUMNS = 1000
"""Series of refused columns in a process."""
MAX_COUNTED_RATIO = 4
"""Models with own counters, as a multiple of the models shown. The others are summed."""


class ProcessCounts:
    """Counters and histograms of what this process does, one method `saw_...` per event.

    Counters of a model continue when its series are shown again. With `outlives`, values live
    in files that outlive the process (`multiprocess.py`), and no series can be removed.
    """

    def __init__(self, shown: ModelFilter, outlives: bool) -> None:
        self._shown, self._outlives = shown, outlives
        self._registry = registry = CollectorRegistry()

        def histogram(
            name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()
        ) -> Histogram:
            return Histogram(f"dualstream_{name}", text, labels, buckets=buckets, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"dualstream_{name}", text, labels, registry=registry)

        text = "How late the event loop runs a callback that is due every 50 ms."
        self._stalls = histogram("event_loop_stall_seconds", text, _STALL_S)
        labels = ("method", "route", "status")
        text = "Time to answer a request."
        self._requests = histogram("request_duration_seconds", text, _REQUEST_S, labels)
        text = "Time of one append to the journal, including retries."
        self._appends = histogram("append_duration_seconds", text, _APPEND_S)
        self._groups = histogram("group_rows", "Rows per append.", _GROUP_ROWS)
        text = "Time to load a model that was not in memory."
        self._loads = histogram("model_load_duration_seconds", text, _LOAD_S)
        self._evictions = counter("model_evictions", "Models evicted from memory.")
        text = "Time from a remembered prediction to its label, for labels learned in this process."
        self._label_delays = histogram("label_delay_seconds", text, _DELAY_S)
        self._default_labels = counter("default_labels", "Default labels journalled.")
        text = "Late labels journalled that replaced others."
        self._revised_labels = counter("revised_labels", text)
        text = "Requests refused under overload, by kind: learn or predict."
        shed = counter("shed_requests", text, "kind")
        text = "Requests refused by the rate limit of their key, by unit: requests or rows."
        self._rate_exceeded = counter("rate_exceeded", text, "unit")
        for unit in ("requests", "rows"):
            self._rate_exceeded.labels(unit)
        text = "Rows refused because the value of this declared column does not fit its type."
        self._refused_columns = counter("refused_column_rows", text, "model", "column")
        self._columns_of: dict[str, dict[str, Counter]] = {}
        self._refused_of: dict[str, dict[str, int]] = {}
        text = "Connections closed by the server, by reason."
        self._closed = counter("connections_closed", text, "reason")
        self._shed_of = {kind: shed.labels(kind) for kind in ("learn", "predict")}
        self._by_model = {name: counter(name, text, "model") for name, text in BY_MODEL.items()}
        self._delays_of: dict[str, tuple[int, float]] = {}

        self._by_request: dict[tuple[str, str, int], Callable[[float], None]] = {}
        self._of_model: dict[tuple[str, str], Counter] = {}

    def saw_request(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in METHODS else "other"
        see = self._by_request.get((method, route, status))
        if see is None:
            see = self._requests.labels(method, route, str(status)).observe
            self._by_request[method, route, status] = see
        see(seconds)

    def saw_stall(self, seconds: float) -> None:
        self._stalls.observe(seconds)

    def saw_group(self, rows: int, seconds: float) -> None:
        self._groups.observe(rows)
        self._appends.observe(seconds)

    def saw_load(self, seconds: float) -> None:
        self._loads.observe(seconds)

    def saw_eviction(self) -> None:
        self._evictions.inc()

    def saw_closed(self, reason: str) -> None:
        self._closed.labels(reason).inc()

    def saw_shed(self, kind: str) -> None:
        self._shed_of[kind].inc()

    def saw_rate_exceeded(self, unit: str) -> None:
        self._rate_exceeded.labels(unit).inc()

    def saw_label(self, model: str, delay_s: float) -> None:
        delay_s = max(0.0, delay_s)  # of a clock that was set back
        self._label_delays.observe(delay_s)
        labels, seconds = self.label_delays(model)
        self._delays_of[model] = labels + 1, seconds + delay_s

    def label_delays(self, model: str) -> tuple[int, float]:
        """Labels that this process learned for waiting rows, and the sum of their delays."""
        return self._delays_of.get(model, (0, 0.0))

    def saw_expired(self, model: str, rows: int) -> None:
        self._count("remembered_expired", model, rows)

    def saw_revised(self, labels: int) -> None:
        self._revised_labels.inc(labels)

    def saw_default_labels(self, rows: int) -> None:
        self._default_labels.inc(rows)

    def saw_predictions(self, model: str, rows: int) -> None:
        self._count("predictions", model, rows)

    def saw_refused(self, model: str, rows: int) -> None:
        self._count("refused_rows", model, rows)

    def saw_refused_columns(self, model: str, rows: Mapping[str, int]) -> None:
        """Rows refused for a value, by declared column."""
        if not self._shown.is_named(model):
            return
        series = self._columns_of.setdefault(model, {})
        for column, count in rows.items():
            if column not in series:
                if sum(map(len, self._columns_of.values())) >= MAX_COLUMNS:
                    return
                series[column] = self._refused_columns.labels(model, column)
            series[column].inc(count)
            counted = self._refused_of.setdefault(model, {})
            counted[column] = counted.get(column, 0) + count

    def refused_columns(self, model: str) -> Mapping[str, int]:
        """Rows that this process refused for a value, by column; only of named models."""
        return self._refused_of.get(model, {})

    def saw_refit(self, model: str, has_entered: bool) -> None:
        self._count("refits" if has_entered else "refits_unused", model, 1)

    def saw_fork(self, model: str) -> None:
        self._count("forks", model, 1)

    def saw_loss(self, model: str, records: int) -> None:
        self._count("lost_records", model, records)

    def saw_delete(self, model: str) -> None:
        """Remove the model's series, if possible. A new model of this id then starts at 0."""
        self._delays_of.pop(model, None)
        self._refused_of.pop(model, None)
        # A sum over other models must not fall.
        may_fall = self._shown.is_named(model) and not self._outlives
        for column in self._columns_of.pop(model, {}):
            if may_fall:
                self._refused_columns.remove(model, column)
        for name in BY_MODEL:
            if may_fall and (name, model) in self._of_model:
                del self._of_model[name, model]
                self._by_model[name].remove(model)

    def _count(self, name: str, model: str, by: int) -> None:
        child = self._of_model.get((name, model))
        if child is None:
            most = MAX_COUNTED_RATIO * self._shown.most * len(BY_MODEL)
            if not self._shown.is_named(model) or len(self._of_model) >= most:
                self._by_model[name].labels(OTHER).inc(by)
                return
            child = self._of_model[name, model] = self._by_model[name].labels(model)
        child.inc(by)

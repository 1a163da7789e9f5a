"""Flat rows of models with `columns`: read by kernels, against the same rows in explicit form.

Texts are read and learned, against scikit-learn's HashingVectorizer with SGDClassifier, and against
Vowpal Wabbit's command line with `--ngram 2`.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier

from dualstream.service.codecs import RowSchema, parse_body
from dualstream.solvers import make_learner, resolve_spec
from load_tests.ingest.bulk import in_memory
from load_tests.ingest.vw import OPTIONS, rows_per_s
from load_tests.measure import Row, interleaved
from load_tests.messages import made

TITLE = "Flat rows"
EVENTS, TEXTS = 20_000, 50_000
PEER_BATCH = 1000
NDJSON, CSV = "application/x-ndjson", "text/csv"
GATE, TEXT_GATE = 1.3, 2.0
HINGE: Mapping[str, Any] = {"algorithm": "dual_ascent", "loss": "hinge"}
COLUMNS: Mapping[str, Any] = {"label": "clicked", "types": {"zip": "category"}}
WORDS: Mapping[str, Any] = {"types": {"text": {"kind": "text", "ngrams": 2}}}
MORE: Mapping[str, Any] = {
    "columns": {"label": "clicked", "types": {"zip": "category", "at": "time"}},
    "crosses": [["site", "at.hour"], ["zip", "device"]],
}


def events(with_time: bool) -> list[dict[str, Any]]:
    """Generated clicks: texts, numbers, booleans and, if wanted, times."""
    draw = random.Random(1)
    zips = [f"{draw.randrange(100_000):05d}" for _ in range(500)]
    rows = []
    for row in range(EVENTS):
        event = {
            "clicked": draw.randrange(2),
            "site": f"site{draw.randrange(200)}",
            "zip": draw.choice(zips),
            "price": round(draw.uniform(0, 99), 2),
            "member": draw.choice([True, False]),
            "device": draw.choice(["ios", "android", "web"]),
            "age": draw.randrange(18, 90),
            "score": round(draw.gauss(0, 1), 4),
            "country": draw.choice(["de", "fr", "us", "uk"]),
            "clicks": draw.randrange(50),
        }
        if with_time:
            when = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=7 * row)
            event["at"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
        rows.append(event)
    return rows


def as_lines(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def as_records(rows: list[dict[str, Any]]) -> bytes:
    lines = [",".join(rows[0]), *(",".join(map(str, one.values())) for one in rows)]
    return "\n".join(lines).encode()


def with_ids(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**event, "id": f"e{number:08d}"} for number, event in enumerate(rows)]


def explicit(event: dict[str, Any]) -> dict[str, Any]:
    return {
        "x": {name: one for name, one in event.items() if name != "clicked"},
        "y": event["clicked"],
    }


def us_a_row(spec: Mapping[str, Any], kind: str, body: bytes) -> float:
    """CPU microseconds to read one row into arrays, by a model that has not met its names."""
    schema = RowSchema(resolve_spec(dict(spec)))
    began = time.thread_time()
    parsed = parse_body(schema, kind, body, labelled=True)
    seconds = time.thread_time() - began
    assert parsed.count == EVENTS and not parsed.errors
    return 1e6 * seconds / EVENTS


def reading() -> Iterator[Row]:
    """Rows a model with `columns` reads, against rows in explicit form."""
    plain, timed = events(with_time=False), events(with_time=True)
    columns, hashed = {"columns": COLUMNS}, {"features": {"kind": "hashed"}}
    renamed = [{"y": row["clicked"], **explicit(row)["x"]} for row in plain]
    sides: dict[str, Callable[[], float]] = {
        "explicit NDJSON": partial(us_a_row, hashed, NDJSON, as_lines([*map(explicit, plain)])),
        "NDJSON": partial(us_a_row, columns, NDJSON, as_lines(plain)),
        "NDJSON with ids": partial(us_a_row, columns, NDJSON, as_lines(with_ids(plain))),
        "a list": partial(us_a_row, columns, "application/json", json.dumps(plain).encode()),
        "NDJSON with a time and two crosses": partial(us_a_row, MORE, NDJSON, as_lines(timed)),
        "explicit CSV": partial(us_a_row, hashed, CSV, as_records(renamed)),
        "CSV": partial(us_a_row, columns, CSV, as_records(plain)),
        "CSV with a time and two crosses": partial(us_a_row, MORE, CSV, as_records(timed)),
    }
    figures = interleaved(sides)
    for name, ours in figures.items():
        if name.startswith("explicit"):
            continue
        peer = "explicit CSV" if name.startswith("CSV") else "explicit NDJSON"
        gate = None if "time" in name or "ids" in name else GATE
        what = f"reading flat rows of 9 features, {name}"
        yield Row(what, "us CPU/row", ours, peer, figures[peer], gate=gate, smaller_is_better=True)


def learn_texts(body: bytes) -> float:
    """Rows a second of reading and learning texts as NDJSON."""
    spec = resolve_spec({"columns": dict(WORDS), **HINGE})
    schema, learner = RowSchema(spec), make_learner(spec)
    began = time.perf_counter()
    learner.learn(parse_body(schema, NDJSON, body, labelled=True).rows)
    return TEXTS / (time.perf_counter() - began)


def peer_learns(texts: list[str], labels: list[int]) -> float:
    """Rows a second of scikit-learn, which gets decoded texts in batches."""
    vectorizer = HashingVectorizer(ngram_range=(1, 2), n_features=2**18, alternate_sign=False)
    model = SGDClassifier(loss="hinge")
    began = time.perf_counter()
    for at in range(0, len(texts), PEER_BATCH):
        batch = slice(at, at + PEER_BATCH)
        model.partial_fit(vectorizer.transform(texts[batch]), labels[batch], classes=[0, 1])
    return len(texts) / (time.perf_counter() - began)


def learning() -> Iterator[Row]:
    """Texts of words and pairs of words, read and learned."""
    samples = list(made(TEXTS, 1))
    texts, labels = [x["text"] for x, _ in samples], [y for _, y in samples]
    body = as_lines([{"y": y, "text": text} for text, y in zip(texts, labels, strict=True)])
    with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
        file = Path(folder) / "texts.vw"
        lines = [f"{1 if y else -1} | {text}" for text, y in zip(texts, labels, strict=True)]
        file.write_text("\n".join(lines))
        figures = interleaved(
            {
                "ours": partial(learn_texts, body),
                "scikit-learn": partial(peer_learns, texts, labels),
                "vw": partial(rows_per_s, file, TEXTS, (*OPTIONS, "--ngram", "2")),
            }
        )
    what = "reading and learning texts, words and pairs, as NDJSON"
    peer = "HashingVectorizer + SGDClassifier.partial_fit of 1,000 rows"
    yield Row(what, "rows/s", figures["ours"], peer, figures["scikit-learn"], gate=TEXT_GATE)
    yield Row(what, "rows/s", figures["ours"], "vw --ngram 2", figures["vw"], gate=1.0)


GROUPS: Mapping[str, Callable[[], Iterator[Row]]] = {"reading": reading, "texts": learning}


def rows(*only: str) -> Iterator[Row]:
    """Rows of the named groups, or of all."""
    for name in only or GROUPS:
        yield from GROUPS[name]()


def about() -> list[str]:
    return [
        f"Clicks of 9 features (5 numbers and booleans, 4 texts), {EVENTS:,} rows in one body, and "
        f"{TEXTS:,} generated texts of 6 to 22 words ([messages.py](messages.py)). One "
        "process reads and learns; there is no server and no journal. Reading is CPU time. Each "
        "round reads with a new model, so names are met for the first time. scikit-learn gets "
        "decoded texts, Vowpal Wabbit a file in its own format, whose time over an empty file is "
        "subtracted."
    ]

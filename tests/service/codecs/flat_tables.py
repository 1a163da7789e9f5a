"""Generated rows of flat objects in three formats."""

import csv
import io
import random
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa

COLUMNS = {
    "label": "clicked",
    "id": "event",
    "weight": "cost",
    "ignore": ["ip"],
    "types": {
        "price": "number",
        "zip": "category",
        "member": "boolean",
        "subject": {"kind": "text", "ngrams": 2},
        "at": {"kind": "time", "parts": ["hour", "weekday", "age"]},
    },
    "missing": ["", "NA", None],
}
CROSSES = [["site", "at.hour"], ["zip", "member"], "*"]
SPEC = {"columns": COLUMNS, "crosses": CROSSES}
_COUNT = {"stats": ["count"], "half_life": 9}
_MEAN = {"of": "price", "stats": ["mean"], "half_life": "1d"}
WITH_HISTORY = {
    "columns": COLUMNS | {"ignore": [], "types": COLUMNS["types"] | {"ip": "ignore"}},
    "crosses": CROSSES,
    "history": [{"by": ["zip", "ip"], "time": "at"} | _MEAN, {"by": ["price", "member"]} | _COUNT],
}


def generated(seed, count=200):
    """Rows with gaps, texts in three alphabets, and times in several zones."""
    rng = random.Random(seed)
    words = ["free", "Money", "деньги", "срочно", "東京", "über", "it's", '"quoted"', "a,b", "x;y"]
    rows = []
    for number in range(count):
        when = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=rng.randrange(10**6))
        zone = timezone(timedelta(minutes=rng.choice([-300, 0, 90, 345])))
        row = {
            "clicked": rng.choice([0, 1]),
            "event": f"e{number}",
            "cost": rng.choice([0.5, 1.0, 2.0]),
            "ip": f"10.0.0.{number}",
            "price": rng.choice([None, round(rng.uniform(-9, 9), 3), 0.0]),
            "zip": rng.choice(["02134", "2134", "NA", "10115"]),
            "member": rng.choice([True, False, None]),
            "subject": " ".join(rng.choices(words, k=rng.randrange(6))) or None,
            "at": when.astimezone(zone).isoformat(),
            "site": rng.choice(["news", "shop", "caf\u00e9", None]),
            "score": rng.choice([1.5, -2.0, None]),
        }
        rows.append(row)
    return rows


def as_csv(rows):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return out.getvalue().encode()


def as_arrow(rows):
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["at"] = [datetime.fromisoformat(one).astimezone(UTC) for one in columns["at"]]
    at = pa.array(columns["at"], pa.timestamp("ns", "UTC"))
    arrays = [at if name == "at" else pa.array(one) for name, one in columns.items()]
    return written(pa.RecordBatch.from_arrays(arrays, list(columns)))


def written(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue().to_pybytes()

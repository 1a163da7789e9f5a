"""Arrow tables of models with and without columns, and their rows as NDJSON."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from dualstream.client import Client
from dualstream.client.calls import NDJSON

NAMED = {"algorithm": "sgd", "features": {"kind": "hashed", "bits": 12}}
FLAT = {"algorithm": "sgd", "columns": {"label": "clicked", "types": {"zip": "category"}}}
FIRST = datetime(2024, 5, 6, 9, 30, tzinfo=UTC)


def named(n: int, seed: int = 0) -> pa.Table:
    """Rows of a model without columns."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "age": rng.integers(0, 80, n),
            "price": rng.normal(size=n),
            "city": rng.choice(["Oslo", "Rome", "Zürich"], n),
            "member": rng.random(n) < 0.5,
            "y": rng.integers(0, 2, n),
            "weight": rng.choice([0.5, 1.0], n),
        }
    )


def flat(n: int, seed: int = 0) -> pa.Table:
    """Rows of a model with columns: times, lists, objects, and missing values."""
    rng = np.random.default_rng(seed)
    gone = rng.random(n) < 0.1
    cities = pa.array(rng.choice(["Oslo", "Rome"], n), mask=gone).dictionary_encode()
    return pa.table(
        {
            "clicked": rng.integers(0, 2, n),
            "price": pa.array(rng.normal(size=n), mask=gone),
            "zip": rng.choice(["02134", "10115"], n),
            "city": cities,
            "member": pa.array(rng.random(n) < 0.5, mask=gone),
            "at": [FIRST + timedelta(minutes=k) for k in range(n)],
            "tags": [["a", "b"][: k % 3] for k in range(n)],
            "user": [{"age": k % 70, "town": f"t{k % 5}"} for k in range(n)],
        }
    )


def learn_lines(client: Client, model: str, rows: list[dict]) -> None:
    body = "\n".join(json.dumps(row, default=datetime.isoformat) for row in rows)
    path = f"/models/{model}/learn"
    sent = client._http.post(path, content=body.encode(), headers={"content-type": NDJSON})
    assert sent.json()["rejected"] == 0, sent.text


def digest(client: Client, model: str) -> str | None:
    return client.get(model, digest=True).state_digest

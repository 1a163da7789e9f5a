"""The state at any seq inside a request is that of its rows up to there, learned one by one."""

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from dualstream.service.features import ALL
from dualstream.service.replica.point_in_time import state_at
from tests.service.codecs.flat_tables import written
from tests.service.codecs.support import ARROW, CSV, NDJSON
from tests.service.replica.snapshot_damage import Kept, run

HASHED = {"features": {"kind": "hashed", "bits": 12}}
NUMBERED = {"features": {"kind": "indexed", "dim": 9}}
SPECS: dict[str, dict[str, Any]] = {
    "numbered": NUMBERED | {"algorithm": "dual_ascent", "loss": "hinge", "retain": 8},
    "named": HASHED | {"algorithm": "dual_ascent", "loss": "hinge", "retain": 8},
    "classes": HASHED | {"algorithm": "sgd", "task": "multiclass"},
    "portfolio": HASHED | {"members": "fast"},
    "guard": HASHED | {"algorithm": "sgd", "guard": {"mode": "warn"}},
    "columns": {"algorithm": "sgd", "columns": {"id": "id"}, "crosses": [["b", "d"]]},
}
NUMBERS, TEXTS = "aceg", "bdfh"
Row = dict[str, Any]


def generated(spec: Row, chance: random.Random, count: int) -> list[Row]:
    """Rows whose features and classes come one after the other, also first with the value 0."""
    rows = []
    for at in range(count):
        names = {name: chance.choice([0, 0, 1, 2.5]) for name in NUMBERS}
        if spec.get("features", {}).get("kind") == "indexed":
            x: Row = {str(1 + index): value for index, value in enumerate(names.values())}
        else:
            x = names | {name: f"{chance.randrange(1 + at)}" * 3 + "x" for name in TEXTS}
        label = chance.choice(["p", "q", "r"][: 1 + at // 3]) if "task" in spec else at % 2
        rows.append({"x": x, "y": label} if "columns" not in spec else x | {"y": label})
    return rows


def flat(rows: list[Row]) -> list[Row]:
    return [row.get("x", row) | {"y": row["y"]} for row in rows]


def as_csv(rows: list[Row]) -> str:
    lines = [",".join(map(str, row.values())) for row in flat(rows)]
    return "\n".join([",".join(flat(rows)[0]), *lines])


def as_vw(rows: list[Row]) -> str:
    def feature(name: str, value: float | str) -> str:
        return f"{name}={value}" if isinstance(value, str) else f"{name}:{value}"

    return "\n".join(
        f"{row['y']} | " + " ".join(feature(*one) for one in row["x"].items()) for row in rows
    )


def bodies_of(spec: Row, rows: list[Row]) -> dict[str, tuple[str, str | bytes]]:
    """The rows in each format that the model reads."""
    result: dict[str, tuple[str, str | bytes]] = {
        "list": ("application/json", json.dumps(rows if "columns" in spec else {"samples": rows})),
        "kernels": (NDJSON, "\n".join(map(json.dumps, rows)) + " " * 5000),
    }
    if any("id" in row for row in rows):
        return result
    result["csv"] = CSV, as_csv(rows) + "\n" * 5000
    result["arrow"] = ARROW, written(pa.RecordBatch.from_pylist(flat(rows)))
    if "columns" not in spec and spec["features"]["kind"] == "hashed":
        result["vw"] = "text/x-vw", as_vw(rows)
    return result


def digest_of(client: TestClient, model: str = "m") -> str:
    return client.get(f"/models/{model}?digest=true").json()["state_digest"]


def learn(client: TestClient, model: str, kind: str, body: str | bytes) -> Row:
    answer = client.post(f"/models/{model}/learn", content=body, headers={"content-type": kind})
    assert answer.status_code == 200, answer.text
    return answer.json()


def digests_inside(store: str, seqs: range) -> list[str]:
    async def states(kept: Kept) -> list[str]:
        results = [await state_at(ALL, kept.journal, kept.record, seq) for seq in seqs]
        return [replica.capture().state_digest() for replica in results]

    return run(store, states)


@pytest.mark.parametrize("has_ids", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_every_seq_inside_a_request_has_the_state_of_its_rows(serve, tmp_path, name, has_ids):
    spec, chance = SPECS[name], random.Random(name)
    rows = generated(spec, chance, 12)
    if has_ids:
        rows = [
            row | ({"id": f"r{at}"} if chance.random() < 0.4 else {}) for at, row in enumerate(rows)
        ]
    client = serve(store=f"sqlite:///{tmp_path / 'rows.db'}")
    assert client.put("/models/m", json=spec).status_code == 201
    digests = [digest_of(client)]
    for row in rows:
        learn(client, "m", "application/json", json.dumps(row))
        digests.append(digest_of(client))
    for form, (kind, body) in bodies_of(spec, rows).items():
        store = f"sqlite:///{tmp_path / form}.db"
        client = serve(store=store)
        client.put("/models/m", json=spec)
        assert learn(client, "m", kind, body)["learned"] == len(rows)
        assert digests_inside(store, range(len(rows) + 1)) == digests, form


def test_a_rollback_into_a_request_forgets_the_names_after_it(client):
    rows = [{"x": {name: 1, "zero": 0}, "y": at % 2} for at, name in enumerate("abcdef")]
    bodies = {"rows": [[row] for row in rows], "list": [rows], "halves": [rows[:3], rows[3:]]}
    for model, requests in bodies.items():
        client.put(f"/models/{model}", json={})
        for samples in requests:
            learn(client, model, "application/json", json.dumps({"samples": samples}))
        answer = client.post(f"/models/{model}/rollback", json={"seq": 2})
        assert answer.status_code == 200, answer.text
    assert len({digest_of(client, model) for model in bodies}) == 1
    for model in bodies:
        names = {one["name"] for one in client.get(f"/models/{model}/columns").json()["columns"]}
        assert names == {"a", "b"}
        learn(client, model, "application/json", json.dumps({"samples": rows[::-1]}))
    assert len({digest_of(client, model) for model in bodies}) == 1

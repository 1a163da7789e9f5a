"""Versions and rollbacks over the HTTP API."""

from typing import Any

from starlette.testclient import TestClient

from tests.service.support import until_written


def learn(client: TestClient, first: int, last: int, **more: Any) -> dict:
    """Rows first .. last - 1 of an endless stream."""
    samples = []
    for n in range(first, last):
        x = [((n * k * 7919) % 101 - 50) / 50 for k in range(1, 6)]
        samples.append({"x": x, "y": int(x[0] + x[1] > 0)} | more.get("each", {}))
    headers = {"idempotency-key": more["key"]} if "key" in more else {}
    answer = client.post("/models/m/learn", json={"samples": samples}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def take(client: TestClient, **options: Any) -> dict:
    answer = client.post("/models/m/versions", json=options)
    assert answer.status_code == 201, answer.text
    return answer.json()


def back(client: TestClient, key: str | None = None, **to: Any) -> Any:
    headers = {} if key is None else {"idempotency-key": key}
    return client.post("/models/m/rollback", json=to, headers=headers)


def settled(client: TestClient) -> None:
    """No snapshot is being written."""
    until_written(client)

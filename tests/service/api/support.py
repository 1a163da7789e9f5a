"""Requests and events of the HTTP API."""

import asyncio
import json
import queue
from collections.abc import Callable
from typing import Any

LABELS = {"binary": [1, 0], "regression": [0.5, -2], "multiclass": ["a", "b"], "hashed": [1, 0]}


def sample(number: int, id_: object = None, task: str = "binary") -> dict:
    name = f"f{number % 7}" if task == "hashed" else str(1 + number % 5)
    made = {"x": {name: 1 + number % 3}, "y": LABELS[task][number % 2]}
    return made if id_ is None else made | {"id": id_}


def learn(client, *samples: dict, key: str | None = None, query: str = "?scores=true", status=200):
    headers = {} if key is None else {"idempotency-key": key}
    answer = client.post(
        f"/models/m/learn{query}", json={"samples": list(samples)}, headers=headers
    )
    assert answer.status_code == status, answer.text
    return answer


class Listener:
    """One who reads the events of an application in this process, as they are sent."""

    def __init__(self, client, model: str = "m", query: str = "every_ms=100", last: str = ""):
        self.said: queue.Queue[dict] = queue.Queue()
        self._client = client
        self._left = client.portal.call(self._make_event)
        headers = [(b"last-event-id", last.encode())] if last else []
        scope = {"type": "http", "method": "GET", "path": f"/models/{model}/events"}
        scope |= {"query_string": query.encode(), "headers": headers}
        self.ending = client.portal.start_task_soon(client.app, scope, self._receive, self._send)

    async def _make_event(self) -> asyncio.Event:
        return asyncio.Event()

    async def _receive(self) -> dict:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict) -> None:
        self.said.put(message)

    def status(self) -> int:
        return self.said.get(timeout=60)["status"]

    def hear(self) -> tuple[str, str, dict]:
        """Kind, id and data of the next event; comments are passed over."""
        while (said := self.said.get(timeout=60)["body"]).startswith(b":"):
            pass
        fields = dict(line.split(": ", 1) for line in said.decode().strip().split("\n"))
        return fields["event"], fields.get("id", ""), json.loads(fields["data"])

    def leave(self) -> None:
        self._client.portal.call(self._leave)
        self.ending.result(timeout=60)

    async def _leave(self) -> None:
        self._left.set()


def values_of(rows) -> list[float]:
    return [float(rows.values[start]) for start in rows.indptr[:-1]]


KEY = {"idempotency-key": "once"}


def assert_again(first: Any, send: Callable[[Any], Any], *clients: Any) -> None:
    """Every worker answers as it was answered at first."""
    assert "idempotency-replayed" not in first.headers
    for client in clients:
        again = send(client)
        fields = {"request_id": ""}  # of each request
        assert again.status_code == first.status_code
        assert again.json() | fields == first.json() | fields
        assert again.headers["idempotency-replayed"] == "true"

"""Refits over the HTTP API."""

import asyncio
import time
from typing import Any

import numpy as np

from dualstream.service.features.refits import table as refit_board
from dualstream.service.features.refits.job import Refits
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Trimmed
from dualstream.service.journal.record import Control, decode
from dualstream.service.replica.point_in_time import kept_from
from tests.support import until as wait_until

DIM = 8
SOLVING_S = 150.0
"""The solver thread has the lowest priority: on busy cores it gets a hundredth of one."""


def samples(first: int, last: int) -> dict[str, Any]:
    x = np.random.default_rng(5).standard_normal((last, DIM))
    y = (x[:, 0] + 0.7 * np.random.default_rng(6).standard_normal(last) > 0).astype(int)
    return {
        "x": x[first:].tolist(),
        "y": y[first:].tolist(),
        "ids": [f"row/{i}" for i in range(first, last)],
    }


def learn(client, first: int, last: int) -> dict[str, Any]:
    answer = client.post("/models/m/learn", json=samples(first, last))
    assert answer.status_code == 200, answer.text
    return answer.json()


def begin(client, **options: Any) -> dict[str, Any]:
    answer = client.post("/models/m/refit", json=options)
    assert answer.status_code == 202, answer.text
    got = answer.json()
    assert answer.headers["location"] == f"/models/m/refits/{got['job']}"
    return got


def until(client, job: str, *statuses: str) -> dict[str, Any]:
    deadline = time.monotonic() + SOLVING_S
    while True:
        answer = client.get(f"/models/m/refits/{job}")
        got = answer.json()
        if answer.status_code == 200 and got["status"] in statuses:
            return got
        # 503 while the model is loaded again, because a clean-up trimmed the journal.
        is_going_on = answer.status_code == 503 or got["status"] in refit_board.UNDER_WAY
        assert time.monotonic() < deadline and is_going_on, got
        time.sleep(0.005)


def finished(client, job: str) -> dict[str, Any]:
    """A refit that has ended, once it is in the table that all processes read."""
    ended = ("done", "refused", "superseded", "cancelled", "failed", "lost")
    until(client, job, *ended)
    models = client.app._registry
    wait_until(lambda: not any(job in model.job(Refits)._local for model in models), every_s=0.001)
    return until(client, job, *ended)


def is_computing(client) -> bool:
    registry = client.app._registry
    return registry.deps.refit_thread.turn.locked() or any(
        model.job(Refits).is_busy for model in registry
    )


def controls(store: str) -> list[Control]:
    async def read() -> list[Control]:
        journal = await open_journal(store)
        try:
            record = await journal.get("m")
            after = await kept_from(journal, record) - 1
            while True:
                try:
                    entries = await journal.read("m", record.incarnation, after)
                    break
                except Trimmed as trimmed:  # by a clean-up
                    after = trimmed.kept_from - 1
        finally:
            await journal.close()
        blocks = (block for entry in entries for _, block in decode(entry.body))
        return [block for block in blocks if isinstance(block, Control)]

    return asyncio.run(read())

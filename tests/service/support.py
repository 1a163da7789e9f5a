"""Replicas behind a client or in a store, and rows of the data set Adult."""

import asyncio
from typing import Any

from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from tests.adult import adult_lines
from tests.support import until

ADULT = {"algorithm": "dual_ascent", "loss": "hinge", "features": {"kind": "indexed", "dim": 123}}


def learn_adult(client, first: int, last: int, model: str = "m", **headers):
    body = b"\n".join(adult_lines()[first:last])
    return client.post(
        f"/models/{model}/learn", content=body, headers={"content-type": "text/x-libsvm"} | headers
    )


def bits(replica: Replica) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in replica.capture().snapshot_arrays.items()}


def replica_of(client, model: str = "m") -> Replica:
    return client.app._registry.find(model).replica


def loaded(store: str) -> Replica:
    """The replica that a new process would have."""

    async def load() -> Replica:
        journal = await open_journal(store)
        try:
            replica = Replica(await journal.get("m"), ALL)
            await recover(replica, journal)
            return replica
        finally:
            await journal.close()

    return asyncio.run(load())


def lose_last_entry(db) -> None:
    """What a failover to a copy that was behind does."""
    with db:
        previous = db.execute(
            "SELECT seq, chain FROM entries ORDER BY seq DESC LIMIT 1 OFFSET 1"
        ).fetchone()
        for table in ("entries", "keys"):
            db.execute(f"DELETE FROM {table} WHERE seq > ?", (previous[0],))
        db.execute("UPDATE heads SET seq = ?, chain = ?", previous)
    db.close()


def until_reason(client, text: str) -> dict:
    answers = []

    def is_said() -> bool:
        answers.append(client.get("/readyz"))
        return text in answers[-1].json().get("reason", "")

    until(is_said)
    assert answers[-1].status_code == 503
    return answers[-1].json()


def until_written(client, model: str = "m") -> None:
    """Wait for the snapshot that is being written."""
    until(lambda: not client.app._registry.find(model).snapshots.is_writing, every_s=0.002)


def until_answered(send) -> Any:
    """The answer to a request that is repeated while the model is being rebuilt."""
    answers = []

    def is_answered() -> bool:
        answers.append(send())
        return answers[-1].status_code != 503

    until(is_answered)
    return answers[-1]


def scraped(client) -> dict[str, float]:
    lines = [line for line in client.get("/metrics").text.splitlines() if line[:1] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


ROW = {"x": {"1": 1, "3": 0.5}, "y": 1}


def learn_row(client, times: int = 1) -> int:
    for _ in range(times):
        answer = client.post("/models/m/learn", json=ROW)
        assert answer.status_code == 200, answer.text
    return answer.json()["seq"]

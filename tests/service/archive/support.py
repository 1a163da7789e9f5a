"""A store with models of each kind, and all that it keeps."""

import asyncio
import io
import time
from contextlib import asynccontextmanager, contextmanager

import msgspec
from starlette.testclient import TestClient

from dualstream.service.archive.dump import dump
from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Trimmed, Version
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings
from tests.service.conftest import SPEC

MEMBERS = [{"name": "dual", "algorithm": "dual_ascent"}, {"name": "steps", "algorithm": "sgd"}]
FEATURES = {"kind": "hashed", "bits": 10}
NAMED = {"algorithm": "portfolio", "features": FEATURES, "members": MEMBERS, "retain": 50}


@asynccontextmanager
async def opened(*urls):
    journals = [await open_journal(url) for url in urls]
    try:
        yield journals
    finally:
        for journal in journals:
            await journal.close()


@contextmanager
def served(url):
    """A client of a server that is stopped afterwards."""
    with TestClient(create_app(Settings(store=url, snapshot_every=20))) as client:
        deadline = time.monotonic() + 30
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline, client.get("/readyz").text
            time.sleep(0.01)
        yield client


def learned(url) -> None:
    """Three models: with ids, keys, a snapshot; with names, controls, a row that waits; empty."""
    with served(url) as client:
        client.put("/models/ids", json=SPEC).raise_for_status()
        for number in range(30):
            samples = [{"x": [number, 0, 1, 0, 2], "y": number % 2, "id": f"a{number}"}]
            learn(client, "ids", samples, f"request {number}")
        client.put("/models/names", json=NAMED).raise_for_status()
        for number in range(10):
            samples = [{"x": {"city": f"c{number}", "age": number}, "y": number % 2}] * 3
            learn(client, "names", samples, f"request {number}")
        new = {"name": "new", "algorithm": "perceptron"}
        client.post("/models/names/members", json=new).raise_for_status()
        learn(client, "names", [{"x": {"city": "c1"}, "y": 1}], "the last one")
        client.post("/models/names/versions", json={"name": "monday"}).raise_for_status()
        client.post("/models/names/rollback", json={"version": "monday"}).raise_for_status()
        waits = {"x": {"city": "c2"}, "id": "late"}
        client.post("/models/names/predict?remember=true", json=waits).raise_for_status()
        client.put("/models/gone", json=SPEC).raise_for_status()
        client.delete("/models/gone").raise_for_status()
        client.put("/models/empty", json=SPEC).raise_for_status()
    asyncio.run(named_and_trimmed(url))


def learn(client, model: str, samples: list, key: str):
    headers = {"Idempotency-Key": key}
    answer = client.post(f"/models/{model}/learn", json={"samples": samples}, headers=headers)
    answer.raise_for_status()
    return answer


async def named_and_trimmed(url: str) -> None:
    """A version, a cursor, and a log that does not begin at its beginning any more."""
    async with opened(url) as [journal]:
        ids = await journal.get("ids")
        snapshot = await journal.snapshot_get("ids", ids.incarnation)
        digest = await journal.copy_put("ids", ids.incarnation, snapshot.data)
        of = (snapshot.seq, snapshot.chain, digest, len(snapshot.data))
        await journal.version_put("ids", ids.incarnation, Version("v1", *of, note="a note"))
        await journal.trim("ids", ids.incarnation, snapshot.seq - 1)


async def everything(journal, model: str) -> dict:
    """All that a store keeps of a model."""
    record = await journal.get(model)
    log_id = (model, record.incarnation)
    after = 0
    try:
        await journal.read(*log_id, 0)
    except Trimmed as trimmed:
        after = trimmed.kept_from - 1
    entries = []
    while page := await journal.read(*log_id, entries[-1].seq if entries else after):
        entries += page
    keys = [key async for page in journal.kept_keys(*log_id) for key in page]
    snapshots = [await journal.snapshot_get(*log_id, n) for n in (0, 1)]
    copies = await journal.copies(*log_id)
    return {
        "record": record,
        "trimmed": after,
        "entries": entries,
        "keys": keys,
        "cursors": (await journal.position(model)).cursors,
        "waiting": sorted(
            [row async for page in journal.kept_rows(*log_id) for row in page],
            key=lambda row: row.key,
        ),
        "snapshots": [result and (result.seq, result.chain, result.data) for result in snapshots],
        "copies": [(c, await journal.copy_get(*log_id, c.digest)) for c in copies],
        "uses": list(await journal.copy_uses(*log_id)),
        "versions": list(await journal.versions(*log_id)),
    }


async def changes(journal) -> list:
    """The log of changes, but for places, which are each store's own."""
    result = await journal.audit(limit=1000)
    return [msgspec.structs.replace(one, place="") for one in result]


async def bits(journal, model: str) -> dict[str, bytes]:
    """What a server that starts on the store computes."""
    replica = Replica(await journal.get(model), ALL)
    await recover(replica, journal)
    return {name: array.tobytes() for name, array in replica.capture().arrays.items()}


async def dumped(journal, model: str | None = None) -> bytes:
    """The archive of this model, or of the store."""
    file = io.BytesIO()
    await dump(journal, model, file, lambda line: None)
    return file.getvalue()


async def archive_of(url: str, model: str | None = None) -> bytes:
    """The archive of a store at a URL, or of a model in it."""
    async with opened(url) as [journal]:
        return await dumped(journal, model)

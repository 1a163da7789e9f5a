"""learn_partitions: each row once and in order, also when workers are killed or tasks run twice."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dualstream.client import BadInput, Client, Refused, dask as dask_client
from dualstream.client.calls import Call
from dualstream.client.dask import Backfill, learn_partitions
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.journal import open_journal
from dualstream.service.journal.record import Rows
from tests.docs.documents import assert_printed, program_of
from tests.history import check_history

SPEC = {"algorithm": "sgd", "features": {"kind": "hashed", "bits": 12}}


@dataclass
class Server:
    url: str
    store: str
    client: Client


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """A server whose journal is never trimmed: the check reads all of it."""
    store = f"sqlite:///{tmp_path_factory.mktemp('dask') / 'rows.db'}"
    kept = ["--keep-records", "1000000000"]
    with ServerProcess(store, kept) as process, Client(process.url) as client:
        yield Server(process.url, store, client)


def numbered(n: int, seed: int = 0) -> pd.DataFrame:
    """Rows whose weight is their number, from 1."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(0, 80, n),
            "city": rng.choice(["Oslo", "Rome", "Zürich"], n),
            "y": rng.integers(0, 2, n),
            "weight": np.arange(1.0, n + 1.0),
        }
    )


def digest(client: Client, model: str) -> str | None:
    return client.get(model, digest=True).state_digest


async def journalled(store: str, model: str, samples: int) -> list[float]:
    """The numbers of a model's rows as its journal has them, once its history is checked."""
    results: list[float] = []

    def tags_of(rows: Rows) -> list[float]:
        numbers = rows.weights.tolist()
        results.extend(numbers)
        return numbers

    journal = await open_journal(store)
    try:
        await check_history(journal, model, [], tags_of=tags_of, samples=samples)
    finally:
        await journal.close()
    return results


def check_all_once(server: Server, model: str, frame: pd.DataFrame) -> None:
    numbers = asyncio.run(journalled(server.store, model, len(frame)))
    assert numbers == frame["weight"].tolist()


def test_the_model_is_that_of_one_table_and_a_second_call_learns_what_is_new(cluster, server):
    frame = numbered(900).astype({"age": float})
    frame.loc[500, "age"] = 1e101  # beyond the range of a row
    data = dd.from_pandas(frame, npartitions=4, sort=False)
    server.client.create("whole", SPEC)
    options = {"model": "whole", "source": "2024", "url": server.url, "client": cluster}
    assert learn_partitions(data.partitions[:3], **options) == {"whole": Backfill(674, 1, 0)}
    assert learn_partitions(data, **options) == {"whole": Backfill(899, 1, 675)}
    assert learn_partitions(data, **options) == {"whole": Backfill(899, 1, 900)}
    server.client.create("table", SPEC)
    server.client.learn("table", pa.Table.from_pandas(frame, preserve_index=False), source="2024")
    assert digest(server.client, "whole") == digest(server.client, "table")
    assert [one.next for one in server.client.sources("whole")] == [900]


def test_rows_of_each_model_are_learned_in_order_by_models_that_are_created(cluster, server):
    frame = numbered(1200)
    frame["shop"] = np.random.default_rng(1).choice([7, 12, 30, 31, 45], 1200)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    parts = [dask.delayed(table.slice)(first, 300) for first in range(0, 1200, 300)]
    parts.insert(1, dask.delayed(frame[:0]))
    options = {"by": "shop", "source": "all", "url": server.url, "client": cluster}
    with pytest.raises(Refused) as refused:
        learn_partitions(parts, **options)
    assert refused.value.kind == "unknown-model"
    result = learn_partitions(parts, spec=SPEC, **options)
    assert sorted(result) == ["12", "30", "31", "45", "7"]
    for name, counts in result.items():
        rows = frame[frame["shop"] == int(name)]
        assert counts == Backfill(len(rows), 0, 0)
        check_all_once(server, name, rows)
        # The column with the model's id is no feature.
        names = {one.name.partition("=")[0] for one in server.client.weights(name).weights}
        assert names <= {"age", "city"}


def plant(requests: int) -> None:
    """Kill this process by SIGKILL once the server has answered its next POSTs."""
    perform, left = Client._perform, iter(range(requests))

    def dying(self, action):
        answer = perform(self, action)
        if isinstance(action, Call) and action.method == "POST" and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    Client._perform = dying


def test_workers_that_are_killed_after_an_append_learn_nothing_twice(cluster, server):
    frame = numbered(6000)
    pids = cluster.run(os.getpid)
    cluster.run(plant, 1)
    server.client.create("killed", SPEC)
    data = dd.from_pandas(frame, npartitions=3, sort=False)
    result = learn_partitions(data, model="killed", source="s", url=server.url, client=cluster)
    check_all_once(server, "killed", frame)
    assert set(pids.values()).isdisjoint(cluster.run(os.getpid).values())
    # Each killed process had sent 1,000 rows and then the rest of its partition.
    assert result["killed"] == Backfill(6000, 0, 4000)


def test_a_task_that_runs_twice_at_the_same_time_learns_each_row_once(cluster, server):
    frame = numbered(20_000)
    cluster.wait_for_workers(2, timeout=60)  # another test may have killed one
    server.client.create("twice", SPEC)
    where = dask_client._Server(server.url, None, "s", None)
    tasks = [
        cluster.submit(
            dask_client._learn,
            frame,
            0,
            where,
            "twice",
            None,
            0,
            1,
            {},
            pure=False,
            workers=[worker],
        )
        for worker in cluster.nthreads()
    ]
    assert [task.result()["twice"][0] for task in tasks] == [20_000, 20_000]
    check_all_once(server, "twice", frame)


def test_a_source_that_is_lost_between_two_partitions_ends_the_run(cluster, server):
    frame = numbered(900)
    server.client.create("lost", SPEC)
    url = server.url

    def lose(part: pd.DataFrame) -> pd.DataFrame:
        """The last partition: it is loaded while the one before it is learned."""
        with Client(url) as client:
            while not (result := client.sources("lost")) or result[0].next != 600:
                time.sleep(0.01)
            client.forget_source("lost", "s")
        return part

    parts = [dask.delayed(frame[first : first + 300]) for first in (0, 300, 600)]
    options = {"model": "lost", "source": "s", "url": server.url, "client": cluster}
    with pytest.raises(Refused) as refused:
        learn_partitions([*parts[:2], dask.delayed(lose)(parts[2])], **options)
    assert refused.value.kind == "unknown-source"
    assert learn_partitions(parts, **options) == {"lost": Backfill(900, 0, 0)}


def test_what_cannot_be_learned_is_named(cluster, server):
    frame = pd.DataFrame({"y": [1, 0], "shop": ["a", None], "price": [1.5, 2.0]})
    data = dd.from_pandas(frame, npartitions=1)
    options = {"source": "s", "url": server.url, "client": cluster}
    with pytest.raises(BadInput, match="partition 0: 1 row without 'shop', which names"):
        learn_partitions(data, by="shop", **options)
    for wrong in ("d/e", "..", ""):
        shops = dd.from_pandas(frame.assign(shop=["first", wrong]), npartitions=1)
        why = re.escape(f"and begins with a letter or digit; the column 'shop' has {wrong!r}")
        with pytest.raises(BadInput, match=why):
            learn_partitions(shops, by="shop", spec={}, **options)
    with Client(server.url) as client, pytest.raises(Refused):
        client.get("first")  # refused before any row is learned
    with pytest.raises(BadInput, match="'price' has double"):
        learn_partitions(data, by="price", **options)
    with pytest.raises(BadInput, match="no column 'tenant'; the columns are y, shop, price"):
        learn_partitions(data, by="tenant", **options)
    with pytest.raises(BadInput, match="give either a model, or as `by`"):
        learn_partitions(data, **options)
    with pytest.raises(BadInput, match="must be a pandas DataFrame or an Arrow table, got 5"):
        learn_partitions([dask.delayed(5)], model="m", **options)
    with pytest.raises(BadInput, match="list of delayed partitions, got"):
        learn_partitions(frame, model="m", **options)


def test_the_blocks_of_the_guide_run_as_written(cluster, tmp_path, monkeypatch, capsys):
    requests = []

    def shared(**options):
        requests.append(options)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr("dask.distributed.Client", shared)
    program = program_of("dask")
    with ServerProcess(f"sqlite:///{tmp_path / 'guide.db'}") as server:
        here = program.replace("http://127.0.0.1:8000", server.url)
        scope = {"__name__": "__main__"}
        exec(here, scope)
        scope["client"].close()
    assert_printed(program, capsys.readouterr().out)
    # The cluster that the guide asks for is the one of conftest.py.
    assert requests == [{"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}]

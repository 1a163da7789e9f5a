"""Check after a storm: clients, workers and the journal agree on each model."""

import asyncio
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import numpy as np

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Entry, Journal, ModelRecord
from dualstream.service.journal.record import Rows, decode_merged
from dualstream.service.replica.entries import as_batch
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.solvers import Batch, Outcome, make_learner, make_progressive
from tests.chaos.clients import Told
from tests.chaos.report import Run
from tests.history import HistoryBroken, Report, check_entries, read_all
from tests.service.server.support import children

SETTLING_S = 120.0


class Found(NamedTuple):
    """The journal's end of a model, and its digest, for every copy."""

    report: Report
    etag: str
    digest: str
    outcome: Outcome
    batch: Batch


async def examine(run: Run, store: str, got: Mapping[str, Told], server: ServerProcess) -> None:
    """Check every model, and every worker's copy. Raises HistoryBroken, AssertionError."""
    result: dict[str, Found] = {}
    broken: HistoryBroken | None = None
    journal = await open_journal(store)
    try:
        for model, of_model in got.items():
            try:
                result[model] = await _examine_model(journal, model, of_model, run.expects_loss)
                run.saw(result[model].report)
            except HistoryBroken as error:
                broken = error
    finally:
        await journal.close()
    if broken is not None:
        raise broken
    await asyncio.to_thread(_compare_workers, server, result)


async def _examine_model(
    journal: Journal, model: str, got: Told, expects_loss: bool = False
) -> Found:
    record = await journal.get(model)
    entries = await read_all(journal, model, record.incarnation)
    replayed = Replica(record, ALL)
    await replayed.catch_up(journal)
    try:
        report = check_entries(
            entries,
            record.incarnation,
            got.acknowledged,
            sent=got.sent,
            samples=replayed.learner.samples,
            rejected=replayed.rejected,
        )
    except HistoryBroken as error:
        report = error.report
        if not expects_loss or not all(map(_is_loss, report.problems)):
            raise
    assert (report.seq, report.chain) == (record.seq, record.chain)
    # Every client was answered in the end, so every row is acknowledged.
    assert report.unacknowledged == 0 or expects_loss, report
    restored = Replica(record, ALL)
    await recover(restored, journal)
    digest = replayed.capture().state_digest()
    assert restored.capture().state_digest() == digest
    outcome, batch = _learned_in_one_go(record, replayed, entries)
    if not report.problems:
        _check_answers(got.answers, outcome, batch)
    return Found(report, f'"{record.seq}-{record.chain[:8]}"', digest, outcome, batch)


def _is_loss(problem: str) -> bool:
    """The row is not at its seq, or it was lost and sent again under its id."""
    return problem.startswith("lost") or " was answered " in problem


def _learned_in_one_go(
    record: ModelRecord, replayed: Replica, entries: Sequence[Entry]
) -> tuple[Outcome, Batch]:
    """A learner that gets all rows at once has every bit of the replica's state."""
    batch = _rows(entries, replayed.dim)
    learner = make_learner(replayed.spec)
    outcome = learner.learn(batch)
    progress = make_progressive(replayed.spec)
    progress.count(batch, outcome)
    for mine, theirs in (
        (replayed.learner.state(), learner.state()),
        (replayed.progress.state(), progress.state()),
    ):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].tobytes() == theirs[name].tobytes(), (record.id, name)
    return outcome, batch


def _rows(entries: Sequence[Entry], dim: int) -> Batch:
    _, blocks = decode_merged(b"".join(entry.body for entry in entries))
    return Batch.concat([as_batch(block, dim) for block in blocks if isinstance(block, Rows)])


def _mistakes(outcome: Outcome, batch: Batch) -> np.ndarray:
    """Rows scored with the wrong sign, or as another class, by the definition."""
    if outcome.predicted is None:
        return np.asarray((outcome.scores >= 0) != (batch.labels > 0))
    predicted = [outcome.classes[at] if at >= 0 else None for at in outcome.predicted.tolist()]
    labels = [batch.classes[int(label)] for label in batch.labels.tolist()]
    return np.array([a != b for a, b in zip(predicted, labels, strict=True)])


def _check_answers(answers: Sequence[dict[str, Any]], outcome: Outcome, batch: Batch) -> None:
    """Each answer matches its rows' effect at their seqs."""
    wrong, losses = _mistakes(outcome, batch), outcome.losses.tolist()
    assert not outcome.rejected.any()
    for got in answers:
        rows = slice(got["seq"] - got["count"], got["seq"])
        if got["loss"] is None and got["duplicate"]:
            continue  # the first answer was no longer stored when the request was repeated
        assert got["mistakes"] == wrong[rows].sum(), got
        assert got["loss"] == sum(losses[rows]) / got["count"], got


def _check_metrics(metrics: dict[str, Any], outcome: Outcome, batch: Batch) -> None:
    """Progressive metrics are sums over the journal's rows."""
    got, rows = metrics["since_start"], len(batch)
    assert metrics["samples"] == rows and metrics["rejected"] == 0, metrics
    assert round(got["error_rate"] * rows) == _mistakes(outcome, batch).sum(), metrics
    assert math.isclose(got["loss"], outcome.losses.mean(), rel_tol=1e-9), metrics


def _compare_workers(server: ServerProcess, result: dict[str, Found]) -> None:
    """Each worker is at the journal's end, with the journal's digest, and returns its metrics."""
    deadline = time.monotonic() + SETTLING_S
    arguments = server.process.args
    assert isinstance(arguments, list)
    wanted = int(arguments[arguments.index("--workers") + 1])
    while (
        len(workers := sorted(children(server))) < wanted
    ):  # the last dead worker is being replaced
        assert time.monotonic() < deadline, workers
        time.sleep(0.02)
    for worker in workers:
        with _alone(worker, workers), httpx.Client(base_url=server.url, timeout=60) as client:
            while client.get("/readyz").status_code != 200:
                assert time.monotonic() < deadline, client.get("/readyz").text
                time.sleep(0.02)
            assert client.get("/readyz?verbose").json()["process"] == worker
            for model, journalled in result.items():
                while (got := _stand(client, model)) != (journalled.etag, journalled.digest):
                    assert time.monotonic() < deadline, (worker, model, got, journalled.etag)
                    time.sleep(0.02)
                metrics = client.get(f"/models/{model}/metrics").json()
                _check_metrics(metrics, journalled.outcome, journalled.batch)


def _stand(client: httpx.Client, model: str) -> tuple[str, str]:
    """Position of a worker's copy, or "" while it may be stale, and its digest."""
    answer = client.get(f"/models/{model}?digest=true")
    assert answer.status_code == 200, answer.text
    return answer.headers.get("etag", ""), answer.json()["state_digest"]


def counted_by_workers(server: ServerProcess, name: str) -> float:
    """Sum over labels of a counter, as one worker reports it for all workers."""
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@contextmanager
def _alone(worker: int, workers: Sequence[int]) -> Iterator[None]:
    """Stop the other workers, so that a new connection goes to this one."""
    others = [other for other in workers if other != worker]
    for other in others:
        os.kill(other, signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)

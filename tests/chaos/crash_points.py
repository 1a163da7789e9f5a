"""Crash points: a process kills itself at a chosen step between request, append and answer.

DUALSTREAM_CRASH_MARK names a file. The first process that reaches the step named in the file
removes the file and dies as by `kill -9`.
"""

import functools
import inspect
import os
import signal
from pathlib import Path
from typing import Any

import redis.asyncio

import dualstream.service.api.responses
from dualstream.service.journal.redis import scripts
from dualstream.service.journal.redis.store import RedisJournal
from dualstream.service.journal.sqlite import append
from dualstream.service.journal.sqlite.store import SqliteJournal
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.replica import Replica

MARK = Path(os.environ.get("DUALSTREAM_CRASH_MARK", "/nonexistent"))

LEARNING = (
    "the request is parked",
    "the group is about to be appended",
    "the append is answered",
    "the rows are learned, and their place not taken note of",
    "the rows are applied",
    "the answer is made",
)
OF_LEARN = ("the answer is made",)
"""Of LEARNING, the steps that no other request reaches."""
SNAPSHOTS = ("the snapshot is about to be put", "the snapshot has all its parts")
SQLITE = ("the rows are in the transaction", "COMMIT is about to be", "COMMIT is done")
REDIS = ("the append is sent",)
CREATING = ("the model is made, and not listed",)


def strike(step: str) -> None:
    """Die here, if this is the step."""
    try:
        chosen = MARK.read_text()
    except OSError:
        return
    if chosen == step:
        try:
            MARK.unlink()
        except FileNotFoundError:  # another worker has struck at the same moment
            return
        os.kill(os.getpid(), signal.SIGKILL)


def plant() -> None:
    """Add the steps to the service's own classes."""
    _before(Committer, "_begin", "the request is parked")
    _before(Committer, "_send", "the group is about to be appended")
    _before(Committer, "_on_appended", "the append is answered")
    _after(Replica, "_learn_slice", "the rows are learned, and their place not taken note of")
    _after(Replica, "apply_own", "the rows are applied")
    _after(dualstream.service.api.responses, "answer_new", "the answer is made")
    for store in (SqliteJournal, RedisJournal):
        _before(store, "snapshot_put", "the snapshot is about to be put")
    _before(SqliteJournal, "_complete_snapshot", "the snapshot has all its parts")
    _before(RedisJournal, "_snapshot", "the snapshot has all its parts", argument="complete")
    _after(append, "_write", "the rows are in the transaction")
    _after(RedisJournal, "_models", "the model is made, and not listed", argument="create")
    _plant_sent()


def _before(owner: Any, name: str, step: str, argument: str | None = None) -> None:
    true = getattr(owner, name)

    @functools.wraps(true)
    def planted(*args: Any, **named: Any) -> Any:
        if argument is None or argument in args:
            strike(step)
        return true(*args, **named)

    setattr(owner, name, planted)


def _after(owner: Any, name: str, step: str, argument: str | None = None) -> None:
    true = getattr(owner, name)

    @functools.wraps(true)
    def planted(*args: Any, **named: Any) -> Any:
        result = true(*args, **named)
        if argument is None or argument in args:
            strike(step)
        return result

    @functools.wraps(true)
    async def planted_async(*args: Any, **named: Any) -> Any:
        result = await true(*args, **named)
        if argument is None or argument in args:
            strike(step)
        return result

    setattr(owner, name, planted_async if inspect.iscoroutinefunction(true) else planted)


def _plant_sent() -> None:
    """Redis has the append, and no process reads its answer."""
    true = redis.asyncio.Connection.send_packed_command

    async def planted(self: Any, command: Any, *args: Any, **named: Any) -> Any:
        result = await true(self, command, *args, **named)
        whole = b"".join(command) if isinstance(command, list) else command
        if scripts.APPEND.packed_digest[-1] in whole:
            strike("the append is sent")
        return result

    redis.asyncio.Connection.send_packed_command = planted  # type: ignore[method-assign]

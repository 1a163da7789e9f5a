"""What a Redis server is and what it keeps, read at each connect."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import ResponseError

from dualstream.service.journal.durability import REDIS_LEVELS
from dualstream.service.journal.protocol import DurabilityTooLow, JournalUnavailable

log = logging.getLogger("dualstream.redis")

Ask = Callable[..., Awaitable[Any]]
"""Sends one command and returns its answer."""

_UNSYNCED = "no-appendfsync-on-rewrite"
_CONFIG = ("appendonly", "appendfsync", _UNSYNCED, "aof-load-truncated", "maxmemory-policy")
_warned: set[str] = set()


async def check_server(ask: Ask, asked: str | None, is_cluster: bool) -> str:
    """The level that this server keeps by itself; lets it begin its log anew after a start.

    Raises JournalUnavailable when it cannot serve at all, or not yet; DurabilityTooLow.
    """
    info = _fields(await ask("INFO"))
    version, mode = info["redis_version"], info["redis_mode"]
    if int(version.split(".")[0]) < 7:
        raise JournalUnavailable(f"Redis {version} is too old: 7.0 or newer")
    if mode != ("cluster" if is_cluster else "standalone"):
        raise JournalUnavailable(f"Redis in {mode} mode: write redis+{mode}:// in the store's URL")
    if info.get("role") != "master":
        raise JournalUnavailable("this Redis is a replica, which takes no appends")
    try:
        answer = await ask("CONFIG", "GET", *_CONFIG)
    except ResponseError as error:
        return _unknown_level(asked, info, error)
    config = dict(zip(*[iter(item.decode() for item in answer)] * 2, strict=True))
    _check_policy(config["maxmemory-policy"])
    level = _level(config)
    if asked is not None and REDIS_LEVELS.index(level) < REDIS_LEVELS.index(asked):
        raise DurabilityTooLow(
            f"Redis keeps {level}, {asked} was asked for: set appendonly yes,"
            f" appendfsync {asked} and {_UNSYNCED} no there"
        )
    if config["appendonly"] == "yes":
        _check_synced_log(info)
        if config.get("aof-load-truncated") == "yes":
            await _rewrite_log(ask, info)
    return level


def _level(config: dict[str, str]) -> str:
    """What a server that is set so keeps at any time.

    One that does not sync its log while a child of it saves, or rewrites the log, keeps no more
    than its memory for as long; `_rewrite_log` begins with that.
    """
    is_synced = config["appendonly"] == "yes" and config.get(_UNSYNCED) != "yes"
    fsync = config["appendfsync"]
    return fsync if is_synced and fsync in REDIS_LEVELS else "memory"


def check_replicas(answer: bytes, replicas: int) -> None:
    """Raise DurabilityTooLow unless, by its INFO, so many replicas follow this server now."""
    found = replicas_of(answer)
    if found < replicas:
        raise DurabilityTooLow(f"Redis has {found} replicas, replicated:{replicas} was asked for")


def replicas_of(answer: bytes) -> int:
    """How many replicas follow a server now, by its INFO."""
    return sum(
        name.startswith("slave") and "state=online" in value
        for name, value in _fields(answer).items()
    )


def _unknown_level(asked: str | None, info: dict[str, str], error: ResponseError) -> str:
    """Managed servers keep their settings to themselves: then nothing is promised of disks."""
    if asked not in (None, "memory"):
        raise DurabilityTooLow(
            f"what Redis keeps cannot be read, and {asked} was asked for: {error}"
        ) from error
    _check_policy(info.get("maxmemory_policy", "noeviction"))
    _warn_once(f"Redis refuses CONFIG GET, so its durability counts as memory: {error}")
    return "memory"


async def _rewrite_log(ask: Ask, info: dict[str, str]) -> None:
    """Let a server that has not done so since its start rewrite its log, before it is written to.

    A script's writes stand there between MULTI and EXEC. A start after the server was killed takes
    the rest of a torn command off the log's end, but leaves the MULTI and the commands between
    (Redis 7; mended in Valkey in August 2026, pull request 4342). What is written next stands
    behind them, its EXEC ends both, and the next start does first what was torn: an append that
    nobody was told of, and which may take the place of one that was acknowledged. A rewrite is made
    of what the server holds. Begun, it has a file of its own for what is written from then on; a
    server that is killed before it ends cuts the torn transaction off at its next start, whole, and
    ends with an error for once.

    While another child of the server runs, a rewrite is only scheduled, and nothing is written
    before it begins. Each connect asks for it anew: so it begins with the first one after that
    child has ended, or the server says why it cannot.

    Raises JournalUnavailable while it is scheduled.
    """
    is_begun = info.get("aof_rewrite_in_progress") != "0"
    was_made = info.get("aof_last_rewrite_time_sec") != "-1"
    if is_begun or (was_made and info.get("aof_last_bgrewrite_status") != "err"):
        return
    try:
        answer = await ask("BGREWRITEAOF")
    except ResponseError as error:
        if "already in progress" not in str(error):
            _warn_once(
                "Redis does not rewrite its log. Killed in the midst of a write, and again later, "
                "it may lose what it acknowledged between: set aof-load-truncated no there: "
                f"{error}"
            )
        return
    if b"scheduled" in answer:
        raise JournalUnavailable(
            "Redis is about to rewrite its log, as after each start, and waits for a child of it "
            "that saves or brings up a replica (INFO persistence tells of it): killed again, it "
            "could lose what it acknowledges now"
        )


def _check_synced_log(info: dict[str, str]) -> None:
    """Raise JournalUnavailable where a promoted replica is not done with its log of a full sync.

    Each full sync ends with a rewrite. Before that is done no file has what was synced, nor what is
    written meanwhile: the next start would read the log of before the sync. Mostly it is done long
    before the replica is promoted, so that a failover is not held up, by `_rewrite_log` neither.
    INFO does not tell this rewrite from later ones: a new connection waits for those, too.
    """
    was_replica = info.get("second_repl_offset", "-1") != "-1"
    coming = (info.get(f"aof_rewrite_{name}") for name in ("in_progress", "scheduled"))
    if was_replica and "1" in coming:
        raise JournalUnavailable(
            "Redis, a replica before, is not done with rewriting its log (INFO persistence tells "
            "of it): killed now, it would come back without what it was sent"
        )


def _warn_once(reason: str) -> None:
    if reason not in _warned:
        _warned.add(reason)
        log.warning("%s", reason)


def _check_policy(policy: str) -> None:
    if policy != "noeviction":
        raise DurabilityTooLow(
            f"Redis may evict the journal: maxmemory-policy is {policy}, set it to noeviction"
        )


def _fields(text: bytes) -> dict[str, str]:
    pairs = (line.partition(b":") for line in text.split(b"\r\n"))
    return {name.decode(): value.decode() for name, _, value in pairs}

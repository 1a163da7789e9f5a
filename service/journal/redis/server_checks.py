"""Checks of a Redis server at each connect: version, role, durability, eviction policy."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import ResponseError

from dualstream.service.journal.durability_levels import REDIS_LEVELS
from dualstream.service.journal.protocol import DurabilityTooLow, JournalUnavailable

log = logging.getLogger("dualstream.redis")

Ask = Callable[..., Awaitable[Any]]
"""Sends one command and returns its answer."""

_UNSYNCED = "no-appendfsync-on-rewrite"
_CONFIG = ("appendonly", "appendfsync", _UNSYNCED, "aof-load-truncated", "maxmemory-policy")
_warned: set[str] = set()


async def check_server(ask: Ask, required: str | None, is_cluster: bool) -> str:
    """Return the server's own durability level; make it rewrite its append-only file after a start.

    Raises JournalUnavailable if it cannot serve at all, or not yet; DurabilityTooLow.
    """
    info = _fields(await ask("INFO"))
    # Valkey 8 names the mode server_mode; its redis_version is that of the Redis it is compatible
    # with.
    version, mode = info["redis_version"], info.get("redis_mode") or info.get("server_mode", "")
    if int(version.split(".")[0]) < 7:
        raise JournalUnavailable(f"Redis {version} is too old; use 7.0 or newer")
    if mode != ("cluster" if is_cluster else "standalone"):
        raise JournalUnavailable(f"Redis in {mode} mode: write redis+{mode}:// in the store's URL")
    if info.get("role") != "master":
        raise JournalUnavailable("this Redis server is a replica, which accepts no appends")
    try:
        config = await _read_settings(ask)
    except ResponseError as error:
        return _unknown_level(required, info, error)
    level = _check_settings(config, required)
    if config["appendonly"] == "yes":
        _check_synced_log(info)
        if config.get("aof-load-truncated") == "yes":
            await _rewrite_log(ask, info)
    return level


async def read_level(ask: Ask, required: str | None) -> str:
    """The durability level by the server's present settings.

    Raises ResponseError if it refuses CONFIG GET; DurabilityTooLow.
    """
    return _check_settings(await _read_settings(ask), required)


async def _read_settings(ask: Ask) -> dict[str, str]:
    answer = await ask("CONFIG", "GET", *_CONFIG)
    return dict(zip(*[iter(item.decode() for item in answer)] * 2, strict=True))


def _check_settings(config: dict[str, str], required: str | None) -> str:
    """The durability level of these settings. Raises DurabilityTooLow."""
    _check_policy(config["maxmemory-policy"])
    level = _level(config)
    if required is not None and REDIS_LEVELS.index(level) < REDIS_LEVELS.index(required):
        raise DurabilityTooLow(
            f"Redis keeps {level}, {required} was asked for: set appendonly yes,"
            f" appendfsync {required} and {_UNSYNCED} no"
        )
    return level


def _level(config: dict[str, str]) -> str:
    """Durability that this configuration guarantees at any time.

    A server with no-appendfsync-on-rewrite does not sync its log while a child process saves or
    rewrites, so it only guarantees `memory`. `_rewrite_log` starts such a rewrite.
    """
    is_synced = config["appendonly"] == "yes" and config.get(_UNSYNCED) != "yes"
    fsync = config["appendfsync"]
    return fsync if is_synced and fsync in REDIS_LEVELS else "memory"


def check_replicas(answer: bytes, replicas: int) -> None:
    """Raise DurabilityTooLow unless, by its INFO, the server has enough replicas now."""
    connected = replicas_of(answer)
    if connected < replicas:
        raise DurabilityTooLow(
            f"Redis has {connected} replicas, replicated:{replicas} was asked for"
        )


def replicas_of(answer: bytes) -> int:
    """Number of online replicas, from the server's INFO."""
    return sum(
        name.startswith("slave") and "state=online" in value
        for name, value in _fields(answer).items()
    )


def _unknown_level(required: str | None, info: dict[str, str], error: ResponseError) -> str:
    """Level of a server that refuses CONFIG GET, as managed servers do: `memory`."""
    if required not in (None, "memory"):
        raise DurabilityTooLow(
            f"Redis's durability cannot be read, and {required} was asked for: {error}"
        ) from error
    _check_policy(info.get("maxmemory_policy", "noeviction"))
    _warn_once(f"Redis refuses CONFIG GET, so its durability counts as memory: {error}")
    return "memory"


async def _rewrite_log(ask: Ask, info: dict[str, str]) -> None:
    """Rewrite the append-only file, once after each start of the server and before the first write.

    This prevents the loss of acknowledged appends. A script's writes are in the file between MULTI
    and EXEC. If the server is killed during a write, its next start truncates the torn command but
    leaves the MULTI and the commands after it (Redis 7; fixed in Valkey in August 2026, pull
    request 4342). Later writes follow, and their EXEC ends both transactions. The start after that
    executes the torn commands first: an append whose caller got no answer, which may take the place
    of an acknowledged one. A rewrite contains only what the server has in memory. Once it has
    begun, new writes go to a file of their own. If the server is killed before the rewrite ends,
    its next start truncates the torn transaction completely, and exits with an error once.

    While another child process of the server runs, the rewrite is only scheduled; nothing is
    written before it begins. Each connect asks for it again, so it begins at the first connect
    after that child has ended, or the server reports why it cannot.

    Raises JournalUnavailable while the rewrite is scheduled.
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
                "Redis does not rewrite its append-only file. If it is killed during a write, and "
                "again later, acknowledged appends may be lost: set aof-load-truncated no: "
                f"{error}"
            )
        return
    if b"scheduled" in answer:
        raise JournalUnavailable(
            "Redis is about to rewrite its log, as after each start, and waits for a child process "
            "that saves or synchronizes a replica (see INFO persistence); if it is killed before, "
            "it may lose acknowledged appends; try again later"
        )


def _check_synced_log(info: dict[str, str]) -> None:
    """Raise JournalUnavailable if a promoted replica is still rewriting its log after a full sync.

    Each full sync ends with a rewrite. Until it is done, no file contains the synced data or later
    writes, and a restart would load the file from before the sync. The rewrite is usually done
    long before a promotion, so failovers are not delayed, nor are they by `_rewrite_log`. INFO does
    not distinguish this rewrite from later ones, so a new connection waits for those, too.
    """
    was_replica = info.get("second_repl_offset", "-1") != "-1"
    coming = (info.get(f"aof_rewrite_{name}") for name in ("in_progress", "scheduled"))
    if was_replica and "1" in coming:
        raise JournalUnavailable(
            "Redis, a replica before, is not done with rewriting its log (see INFO persistence); "
            "if it is killed now, it loses what it received; try again later"
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

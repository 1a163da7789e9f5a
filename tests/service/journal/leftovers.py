"""Search for deleted bytes in the files and keys of a store."""

import os
import time
from pathlib import Path

import numpy as np
import redis


def marks(count: int, size: int = 240) -> list[bytes]:
    """Random bytes: unique, and incompressible."""
    return [os.urandom(size) for _ in range(count)]


def is_in(mark: bytes, blob: bytes) -> bool:
    """Does the blob contain any piece of the mark? Stores split and pack data."""
    step = 8 * max(1, len(mark) // 240)
    return any(mark[at : at + 8] in blob for at in range(0, len(mark) - 8, step))


def count_left(marks: list[bytes], blob: bytes) -> int:
    """How many of these marks of 8 bytes are anywhere in the blob?"""
    wanted = np.frombuffer(b"".join(marks), "<u8")
    result: set[int] = set()
    for shift in range(8):
        words = np.frombuffer(blob, "<u8", (len(blob) - shift) // 8, shift)
        result.update(words[np.isin(words, wanted)].tolist())
    return len(result)


def kept_bytes(url: str) -> bytes:
    """All data of a store: the database files, or a dump of every key of the server."""
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        return b"".join(one.read_bytes() for one in sorted(path.parent.glob(path.name + "*")))
    with redis.Redis.from_url(url) as client:
        return b"".join(client.dump(key) or b"" for key in sorted(client.scan_iter()))


def append_only_file(url: str, *, rewrite: bool) -> bytes:
    """A Redis server's append-only file, optionally after a rewrite."""
    with redis.Redis.from_url(url) as client:
        wait_for_rewrite(client)  # the one after its start
        if rewrite:
            client.bgrewriteaof()
            wait_for_rewrite(client)
        folder = Path(client.config_get("dir")["dir"], client.config_get()["appenddirname"])
        return b"".join(one.read_bytes() for one in sorted(folder.iterdir()))


def wait_for_rewrite(client: redis.Redis) -> None:
    """Return once a Redis server has finished its rewrites, such as that of the first connect."""
    info = client.info("persistence")
    while info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]:
        time.sleep(0.005)
        info = client.info("persistence")
    assert info["aof_last_bgrewrite_status"] == "ok"

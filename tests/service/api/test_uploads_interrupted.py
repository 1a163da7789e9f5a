"""Uploads to real servers: cut, killed, slow, endless; what was sent again is learned once."""

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.journal import open_journal
from dualstream.wire.chunking.chunks import CHUNK_BYTES
from tests.history import Acknowledged, check_history
from tests.service.api.support import values_of

SPEC = {"algorithm": "passive_aggressive", "features": {"kind": "indexed", "dim": 4}}
ROWS = 30_000
SIZE = 80
# Each of another value, and all together of three chunks.
LINES = (f"{k % 2} 1:{k + 2} 2:0.5".ljust(SIZE - 1) + "\n" for k in range(ROWS))
BODY = "".join(LINES).encode()
CHUNKS = 3
# The history checker reads a journal from its beginning.
KEPT = ["--keep-records", "1000000"]


class Uploading:
    """A request to learn whose body is sent bit by bit; lines of progress come back."""

    def __init__(self, server: ServerProcess, model: str = "m", key: str = "k") -> None:
        url = urlsplit(server.url)
        self.socket = socket.create_connection((url.hostname, url.port), timeout=60)
        head = [
            f"POST /models/{model}/learn HTTP/1.1",
            "host: localhost",
            "content-type: text/x-libsvm",
            "accept: application/x-ndjson",
            "transfer-encoding: chunked",
            f"idempotency-key: {key}",
        ]
        self.socket.sendall("\r\n".join([*head, "\r\n"]).encode())
        self._answer = self.socket.makefile("rb")

    def send(self, body: bytes) -> None:
        self.socket.sendall(b"%x\r\n%s\r\n" % (len(body), body))

    def line(self) -> dict:
        """The next line of progress."""
        while not (line := self._answer.readline()).startswith(b"{"):
            assert line, "the connection has ended"
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()
        self.socket.close()


def create(server: ServerProcess, model: str = "m") -> None:
    httpx.put(f"{server.url}/models/{model}", json=SPEC, timeout=60).raise_for_status()


def upload(server: ServerProcess, model: str = "m", body: object = BODY, key: str = "k") -> dict:
    headers = {"content-type": "text/x-libsvm", "idempotency-key": key}
    answer = httpx.post(
        f"{server.url}/models/{model}/learn", content=body, headers=headers, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(server: ServerProcess, store: str) -> None:
    """Each row stands once, in its place; the state is that of an upload in one go."""

    async def every_row() -> None:
        journal = await open_journal(store)
        try:
            values = [k + 2.0 for k in range(ROWS)]
            acknowledged = [Acknowledged(value, k + 1) for k, value in enumerate(values)]
            sent = dict.fromkeys(values, 1)
            await check_history(
                journal, "m", acknowledged, tags_of=values_of, sent=sent, samples=ROWS
            )
        finally:
            await journal.close()

    asyncio.run(every_row())
    create(server, "once")
    assert upload(server, "once")["duplicate"] is False
    results = [httpx.get(f"{server.url}/models/{m}?digest=true").json() for m in ("m", "once")]
    assert results[0]["state_digest"] == results[1]["state_digest"] and results[0]["seq"] == ROWS


def test_repeated_upload_resumes_after_a_cut_connection(store):
    with ServerProcess(store, KEPT) as server:
        create(server)
        with Uploading(server) as first:
            # Of a slow sender, too, a chunk is learned when it is there, not at the body's end.
            for start in range(0, CHUNK_BYTES + 1, 100_000):
                first.send(BODY[start : start + 100_000])
            got = first.line()
            assert got["chunk"] == 0 and got["bytes"] <= CHUNK_BYTES
            first.send(BODY[1_100_000:1_200_000])
            seq = httpx.get(f"{server.url}/models/m/predict?x=1:1").json()["seq"]
            assert seq == got["seq"] == got["bytes"] // SIZE
        again = upload(server)
        assert (again["count"], again["chunks"], again["duplicate_chunks"]) == (ROWS, CHUNKS, 1)
        assert again["duplicate"] is False
        check(server, store)


def test_repeated_upload_resumes_after_a_killed_server(store):
    with ServerProcess(store, KEPT) as server:
        create(server)
        with Uploading(server) as first:
            first.send(BODY[: CHUNK_BYTES + 50_000])
            acknowledged = first.line()
            server.kill()
    with ServerProcess(store, KEPT) as server:
        with Uploading(server) as again:
            again.send(BODY)
            again.socket.sendall(b"0\r\n\r\n")
            lines = [again.line() for _ in range(CHUNKS + 1)]
        assert lines[0] == acknowledged | {"duplicate": True}
        assert lines[1]["duplicate"] is False
        assert (lines[-1]["count"], lines[-1]["duplicate_chunks"]) == (ROWS, 1)
        check(server, store)


def test_a_server_that_shuts_down_does_not_wait_for_the_rest(tmp_path):
    with ServerProcess(f"sqlite:///{tmp_path / 'store.db'}") as server:
        create(server)
        with Uploading(server) as sending:
            sending.send(BODY[: CHUNK_BYTES + 100])
            seq = sending.line()["seq"]
            server.stop()
            got = sending.line()
        assert (got["status"], got["chunks"], got["seq"]) == (503, 1, seq)
        assert got["type"].endswith("/shutting-down")


def peak_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def test_memory_does_not_grow_with_the_body(tmp_path):
    rows = b"1 1:2 2:0.5 %s\n" % (b" " * 4000)
    piece = rows * 64

    def body(size: int):
        for _ in range(size // len(piece)):
            yield piece

    # Started as users do: a forked one shares memory with where it comes from.
    with ServerProcess(f"sqlite:///{tmp_path / 'store.db'}", prefix=["env"]) as server:
        create(server)
        upload(server, body=body(8 << 20), key="short")
        before = peak_bytes(server)
        assert upload(server, body=body(40 << 20), key="long")["chunks"] >= 40
        # Of 32 MB more; how far chunks overlap differs from run to run, and each is 1 MiB, thrice.
        assert peak_bytes(server) - before < 8 << 20


def test_the_sender_waits_for_the_store(redis_server):
    """While an append is on its way no more is taken than two chunks and what the network holds."""
    with ServerProcess(redis_server.url) as server:
        create(server, "waiting")
        with Uploading(server, "waiting") as sending:
            sending.send(BODY[: CHUNK_BYTES + 100])
            assert sending.line()["chunk"] == 0
            redis_server.pause()
            try:
                sending.socket.settimeout(0.5)
                sent = 0
                with suppress(TimeoutError):
                    while sent < 64 << 20:
                        sending.send(BODY[: 1000 * SIZE])
                        sent += 1000 * SIZE
            finally:
                redis_server.resume()
        assert sent < 24 << 20
        httpx.delete(f"{server.url}/models/waiting", timeout=60)

"""Source files and calls that one learned sample passes: `python -m load_tests.call_path`."""

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from starlette.types import Message

from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("service", "solvers", "wire")
SPEC = b'{"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 5}}'
ROW = b'{"x": [1, 2, 3, 4, 5], "y": 1}'


async def request(app: Any, method: str, path: str, body: bytes = b"") -> int:
    """Send one request through ASGI; returns the status."""
    sent: list[Message] = []
    bodies = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return bodies.pop() if bodies else await asyncio.Future()

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("localhost", 1),
    }
    await app(scope, receive, send)
    return int(sent[0]["status"])


async def measure(folder: str) -> dict[str, int]:
    """Calls by file of one single-sample learn, after a few that warm everything up."""
    app = create_app(Settings(store=f"sqlite:///{folder}/store.db"))
    calls: dict[str, int] = {}

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            path = Path(frame.f_code.co_filename).resolve()
            if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS:
                name = str(path.relative_to(ROOT))
                calls[name] = calls.get(name, 0) + 1

    incoming: asyncio.Queue[Message] = asyncio.Queue()
    ready = asyncio.Event()

    async def lifespan_send(message: Message) -> None:
        ready.set()

    threading.setprofile(count)  # for the threads that start from now on
    lifespan = asyncio.create_task(app({"type": "lifespan"}, incoming.get, lifespan_send))
    await incoming.put({"type": "lifespan.startup"})
    await ready.wait()
    while await request(app, "GET", "/readyz") != 200:
        await asyncio.sleep(0.01)
    assert await request(app, "PUT", "/models/m", SPEC) == 201
    for _ in range(20):
        assert await request(app, "POST", "/models/m/learn", ROW) == 200
    calls.clear()
    sys.setprofile(count)
    assert await request(app, "POST", "/models/m/learn", ROW) == 200
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    counts = dict(calls)
    await incoming.put({"type": "lifespan.shutdown"})
    await lifespan
    return counts


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        calls = asyncio.run(measure(folder))
    for name, number in sorted(calls.items()):
        print(f"{number:5d}  {name}")
    print(f"{len(calls)} files, {sum(calls.values())} calls")


if __name__ == "__main__":
    main()

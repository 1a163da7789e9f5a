"""Worker processes of a server."""

from collections.abc import Iterator
from pathlib import Path

import httpx

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.service.support import ROW
from tests.support import until


def children(server: ServerProcess) -> list[int]:
    """The workers of the server."""
    return [pid for pid, parent, _ in _processes() if parent == server.process.pid]


def _processes() -> Iterator[tuple[int, int, str]]:
    """Each process of this machine that is not a zombie: its id, its parent's, its command."""
    for path in Path("/proc").iterdir():
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                yield int(path.name), int(parent), (path / "cmdline").read_text()
        except (OSError, ValueError):
            continue


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def scraped(server: ServerProcess) -> dict[str, float]:
    """By whichever worker answers."""
    answer = httpx.get(f"{server.url}/metrics", timeout=60)
    lines = [line.rpartition(" ") for line in answer.text.splitlines() if line[:1] != "#"]
    return {name: float(value) for name, _, value in lines}


def scraped_model(server: ServerProcess) -> dict[str, float]:
    """A scrape with the model `m`: a worker that does not catch up in time leaves it out."""
    results: list[dict[str, float]] = []

    def has_it() -> bool:
        results.append(scraped(server))
        return 'dualstream_seq{model="m"}' in results[-1]

    until(has_it)
    return results[-1]


def is_learned(server: ServerProcess) -> bool:
    """Is one more row learned? A killed worker closes its connections."""
    try:
        answer = httpx.post(f"{server.url}/models/m/learn", json=ROW, timeout=60)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200


def are_back(server: ServerProcess, killed: set[int]) -> bool:
    """Do two workers serve in place of the killed ones?"""
    running = set(children(server)) - killed
    return len(running) == 2 and ready_workers(server) == 2


def ready_workers(server: ServerProcess) -> int:
    try:
        return int(scraped(server)["dualstream_workers"])
    except (httpx.HTTPError, KeyError, ValueError):
        return 0

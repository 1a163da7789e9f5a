"""Any process of `serve --workers N` may be killed, in any order, alone and in pairs.

While the parent lives, the service answers within seconds and all workers are back. Without it,
every process ends and leaves nothing. `make test` has a sample in
tests/service/server/test_workers.py.
"""

import os
import signal
import subprocess
from itertools import permutations
from pathlib import Path

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.service.conftest import SPEC
from tests.service.server.support import are_back, children, is_alive, is_learned
from tests.support import until

ROUNDS = int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "0"))
PROCESSES = ("parent", "first", "second")
VICTIMS = [*((one,) for one in PROCESSES), *permutations(PROCESSES, 2)]


@pytest.mark.skipif(not ROUNDS, reason="`make chaos` runs it")
@pytest.mark.parametrize("victims", VICTIMS, ids="-".join)
def test_any_process_may_be_killed(tmp_path: Path, victims: tuple[str, ...]) -> None:
    store = f"sqlite:///{tmp_path / 'tree.db'}"
    shared = {"TMPDIR": str(tmp_path)}
    server = ServerProcess(store, ["--workers", "2"], env=shared, stderr=subprocess.DEVNULL)
    try:
        httpx.put(f"{server.url}/models/m", json=SPEC, timeout=60).raise_for_status()
        for _ in range(1 if "parent" in victims else 2):
            first, second = children(server)
            pids = {"parent": server.process.pid, "first": first, "second": second}
            for victim in victims:
                os.kill(pids[victim], signal.SIGKILL)
            if "parent" not in victims:
                until(lambda: is_learned(server), 60)
                killed = {pids[victim] for victim in victims}
                until(lambda killed=killed: are_back(server, killed), 60)
        if "parent" in victims:
            until(lambda: not any(map(is_alive, pids.values())), 60)
            assert not list(tmp_path.glob("dualstream-workers-*"))
    finally:
        server.kill()

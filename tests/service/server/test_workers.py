"""`dualstream serve --workers N`: several processes on one port and one store."""

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.journal import open_journal
from dualstream.service.server.start_checks import listen
from dualstream.service.server.workers import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    MAX_SHORT_LIVES,
    SHORT_LIFE_S,
    ShortLives,
)
from dualstream.service.settings import Settings
from tests.forked import COMMAND, ForkedProcess
from tests.history import Acknowledged, check_history
from tests.service.conftest import SPEC
from tests.service.server.support import (
    are_back,
    children,
    is_alive,
    is_learned,
    scraped,
    scraped_model,
)
from tests.service.support import ROW, loaded
from tests.support import until

WORKERS = 3


def test_workers_share_a_port_and_a_new_store(store):
    flags = ["--workers", str(WORKERS), "--stop-timeout-s", "0.2"]
    with socket.socket() as stalled, ServerProcess(store, flags) as server:
        assert server.said[0] == f"Dualstream listens on {server.url}"
        assert server.said[1].endswith(f" · {WORKERS} workers")
        assert len(children(server)) == WORKERS
        httpx.put(f"{server.url}/models/m", json=SPEC, timeout=60).raise_for_status()
        acknowledged: list[Acknowledged] = []

        def send(sender: int) -> None:
            for number in range(20):
                key = f"{sender}-{number}"
                # A connection of its own each time: whichever worker takes it.
                answer = httpx.post(
                    f"{server.url}/models/m/learn", json=ROW, headers={"idempotency-key": key}
                )
                assert answer.status_code == 200, answer.text
                seq = answer.json()["seq"]
                acknowledged.append(Acknowledged(key, seq, 1))
                got = httpx.get(f"{server.url}/models/m/predict?x=1:1&min_seq={seq}")
                assert got.status_code == 200 and got.json()["seq"] >= seq

        senders = [threading.Thread(target=send, args=(k,)) for k in range(4)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert len(acknowledged) == 80
        # By whichever worker: each applies what the others appended.
        until(lambda: len(etags := etags_of(server)) == 1 and etags.pop().startswith('"80-'))
        until(lambda: httpx.get(f"{server.url}/readyz?verbose").json()["lag"]["records"] == 0)
        # Whoever does not finish its request keeps no worker from ending, which `with` waits for.
        stalled.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        stalled.sendall(b"POST /models/m/learn HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
    assert server.process.returncode == 0
    replica = loaded(store)

    async def check() -> None:
        journal = await open_journal(store)
        try:
            samples = replica.learner.samples
            await check_history(journal, "m", acknowledged, samples=samples)
        finally:
            await journal.close()

    asyncio.run(check())


def etags_of(server: ServerProcess) -> set[str]:
    return {httpx.get(f"{server.url}/models/m").headers["etag"] for _ in range(10)}


def test_a_killed_worker_is_replaced_and_a_killed_parent_takes_all_along(tmp_path):
    store = f"sqlite:///{tmp_path / 'workers.db'}"
    shared = {"TMPDIR": str(tmp_path)}
    flags = ["--workers", "2", "--drain-s", "2"]  # the workers serve on when the parent has ended
    server = ServerProcess(store, flags, env=shared, stderr=subprocess.DEVNULL)
    try:
        httpx.put(f"{server.url}/models/m", json=SPEC, timeout=60).raise_for_status()
        first = children(server)
        for done in range(1, 21):  # by both of them: a count never falls, and none is missing
            httpx.post(f"{server.url}/models/m/learn", json=ROW, timeout=60).raise_for_status()
            httpx.get(f"{server.url}/models/m/predict?x=1:1", timeout=60).raise_for_status()
            got = scraped_model(server)
            assert got['dualstream_samples_total{model="m",outcome="learned"}'] == done
            assert got['dualstream_predictions_total{model="m"}'] == done
            for name in (
                "dualstream_group_rows_count",
                "dualstream_append_duration_seconds_count",
                'dualstream_request_duration_seconds_count{method="POST",route="learn",status="200"}',
            ):
                # Counted after the answer is sent, which the other worker may be asked before.
                until(lambda name=name, done=done: scraped(server)[name] == done)
        until(lambda: scraped(server)["dualstream_workers"] == 2)
        assert scraped(server)["dualstream_models_budget_bytes"] == 2 * Settings().models_bytes
        os.kill(first[0], signal.SIGKILL)
        # The other one serves until the new one can.
        until(lambda: is_served(server) and are_back(server, {first[0]}))
        for _ in range(10):
            assert is_served(server)
        got = scraped_model(server)  # what the killed one had counted stays
        assert got['dualstream_predictions_total{model="m"}'] == 20
        assert got["dualstream_group_rows_sum"] >= 30
        assert len(list(tmp_path.glob("dualstream-workers-*/counter_*.db"))) == 2
    finally:
        workers = children(server)
        server.kill()
    assert workers
    until(lambda: not any(map(is_alive, workers)))
    assert not list(tmp_path.glob("dualstream-workers-*"))


def test_any_worker_and_pair_of_workers_is_replaced_and_the_metrics_stay(tmp_path):
    """A killed worker is replaced in seconds. Its counts, and those of the others, stay."""
    store = f"sqlite:///{tmp_path / 'workers.db'}"
    shared = {"TMPDIR": str(tmp_path)}
    server = ServerProcess(store, ["--workers", "2"], env=shared, stderr=subprocess.DEVNULL)
    try:
        httpx.put(f"{server.url}/models/m", json=SPEC, timeout=60).raise_for_status()
        learned = 0
        for victims in ([0], [1], [0, 1], [1]):
            before = children(server)
            assert len(before) == 2
            for victim in victims:
                os.kill(before[victim], signal.SIGKILL)
            until(lambda: is_learned(server))
            learned += 1
            killed = {before[victim] for victim in victims}
            until(lambda killed=killed: are_back(server, killed))
            got = scraped_model(server)
            assert got['dualstream_samples_total{model="m",outcome="learned"}'] == learned
            assert got["dualstream_group_rows_sum"] >= learned - 1  # killed while it answered
        assert len(list(tmp_path.glob("dualstream-workers-*"))) == 1
    finally:
        left = children(server)
        server.stop()
    assert server.process.returncode == 0
    until(lambda: not any(map(is_alive, left)))
    assert not list(tmp_path.glob("dualstream-workers-*"))


def is_served(server: ServerProcess) -> bool:
    """Learns a row and scrapes. False if a killed worker closed the connection."""
    try:
        answer = httpx.post(f"{server.url}/models/m/learn", json=ROW, timeout=60)
        assert answer.status_code == 200, answer.text
        scraped_model(server)
    except httpx.TransportError:
        return False
    return True


def test_one_worker_answers_probes_while_the_store_is_away(tmp_path: Path):
    log, unused = tmp_path / "log", socket.socket()
    unused.bind(("127.0.0.1", 0))  # bound, so that no other program gets the port
    store = f"redis://127.0.0.1:{unused.getsockname()[1]}/0"
    with (
        unused,
        log.open("w") as errors,
        ServerProcess(store, ["--workers", "2"], stderr=errors, wait=False) as server,
    ):
        server.wait_until("Dualstream listens")
        until(lambda: len(children(server)) == 2)
        first = process_of(server)
        (second,) = set(children(server)) - {first}
        assert {process_of(server) for _ in range(10)} == {first}
        os.kill(second, signal.SIGKILL)
        until(lambda: len(set(children(server)) - {second}) == 2)
        assert {process_of(server) for _ in range(30)} == {first}
        os.kill(first, signal.SIGKILL)
        until(lambda: are_other(server, first))
    # The one that waits for the store ended, too, without its timeout.
    assert server.process.returncode == 0
    assert "stopping" in log.read_text() and "Traceback" not in log.read_text()


def process_of(server: ServerProcess) -> int:
    """The worker that answers a probe."""
    assert httpx.get(f"{server.url}/livez", timeout=60).status_code == 200
    answer = httpx.get(f"{server.url}/readyz?verbose", timeout=60)
    assert answer.status_code == 503
    return int(answer.json()["process"])


def are_other(server: ServerProcess, killed: int) -> bool:
    try:
        return process_of(server) != killed and killed not in children(server)
    except httpx.TransportError:
        return False


def test_workers_that_keep_ending_end_the_service_after_growing_pauses(tmp_path):
    store = f"sqlite:///{tmp_path / 'workers.db'}"
    log = tmp_path / "log"
    with log.open("w") as stderr:
        server = ServerProcess(store, ["--workers", "2"], stderr=stderr)
        ended = threading.Event()

        def kill_all() -> None:
            while not ended.is_set():
                for pid in children(server):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)

        killer = threading.Thread(target=kill_all)
        killer.start()
        try:
            assert server.process.wait(timeout=120) == 5
        finally:
            ended.set()
            killer.join()
            server.kill()
    got = log.read_text()
    assert "10 workers in a row ended" in got
    pauses = [float(line.split()[-2]) for line in got.splitlines() if "starting another" in line]
    assert len(pauses) == 10 and pauses == sorted(pauses) and pauses[-1] == 5.0


def test_workers_that_end_now_and_then_are_replaced_for_ever():
    lives = ShortLives()
    for _ in range(3 * MAX_SHORT_LIVES):
        assert lives.pause_after(0.5) == FIRST_PAUSE_S
        assert lives.pause_after(0.5) == 2 * FIRST_PAUSE_S
        assert lives.pause_after(SHORT_LIFE_S) == 0.0
    assert max(lives.pause_after(0.0) for _ in range(10_000)) == MAX_PAUSE_S


def refusal_of(*flags: str) -> str:
    """What `serve` says before it ends as one that is called wrongly."""
    process = ForkedProcess([*COMMAND, *flags], stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    return errors


def test_one_worker_adopts(tmp_path):
    store = f"sqlite:///{tmp_path / 'unused.db'}"
    assert "without --workers" in refusal_of(
        "--workers", "2", "--adopt", "--port", "0", "--store", store
    )


def test_all_addresses_are_those_of_ipv4_and_ipv6_and_brackets_are_no_part_of_one():
    for host, reached in (
        ("::", ("127.0.0.1", "::1")),
        ("[::]", ("127.0.0.1", "::1")),
        ("[::1]", ("::1",)),
        ("0.0.0.0", ("127.0.0.1",)),
    ):
        with listen(Settings(host=host, port=0)) as listening:
            port = listening.getsockname()[1]
            for address in reached:
                socket.create_connection((address, port), 5).close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use_is_refused(tmp_path, workers):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        store = f"sqlite:///{tmp_path / 'unused.db'}"
        said = refusal_of("--workers", workers, "--port", port, "--store", store)
    assert said == f"port {port} is in use; choose another with --port\n"
    assert list(tmp_path.iterdir()) == []

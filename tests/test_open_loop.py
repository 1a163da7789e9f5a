"""The generator of load sends when a request is due, and counts from then."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from load_tests.generator import Order, drive_apart
from load_tests.open_loop import drive, get, post

CORE = min(os.sched_getaffinity(0))
LEARNED = b'{"model":"bench","seq":7,"count":1}'


@contextmanager
def server(
    answer: bytes,
    delay_s: float = 0.0,
    beside: bytes | None = None,
    heard: list[bytes] | None = None,
) -> Iterator[str]:
    """Answers each request on one connection after `delay_s`.

    With `beside`, answers requests on a second connection at once with this text, and those on the
    first one not before the third of them. Requests are appended to `heard`.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    beside_asked = threading.Semaphore(0)

    def serve(connection: socket.socket, answer: bytes, delay_s: float) -> None:
        is_beside = answer is beside
        with connection:
            while request := connection.recv(1 << 16):
                if heard is not None:
                    heard.append(request)
                time.sleep(delay_s)
                if is_beside:
                    beside_asked.release()
                elif beside is not None:
                    for _ in range(3):
                        beside_asked.acquire(timeout=60.0)
                connection.sendall(answer)

    def accept() -> None:
        first, _ = listener.accept()
        threads = [threading.Thread(target=serve, args=(first, answer, delay_s))]
        if beside is not None:
            second, _ = listener.accept()
            threads.append(threading.Thread(target=serve, args=(second, beside, 0.0)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join()
        listener.close()


def response(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def test_latency_counts_from_when_a_request_was_due():
    delay_s, rate, count = 0.02, 1000.0, 5
    with server(response(b"200 OK", LEARNED), delay_s) as url:
        run = drive(url, [post("/learn", b"{}")], rate, count / rate, connections=1)
    # Requests wait for the one connection; a closed loop would report delay_s for each.
    least = [(index + 1) * delay_s - index / rate for index in range(count)]
    assert all(result >= bound for result, bound in zip(run.latencies, least, strict=True))
    assert len(run.slips) == count
    assert run.acks == [7] * count


def test_what_is_refused_or_cannot_be_sent_is_counted_where_it_may_be():
    with server(response(b"503 Service Unavailable", b"{}"), 0.05) as url:
        run = drive(url, [post("/learn", b"{}")], 1000.0, 0.02, connections=1, may_refuse=True)
    assert not run.latencies and len(run.refusals) + run.unsent == 20
    assert run.refusals and run.unsent and min(run.refusals) >= 0.05


def test_what_is_asked_beside_the_load_does_not_wait_for_it():
    lives = response(b"200 OK", b'{"alive":true}')
    with server(response(b"200 OK", LEARNED), 0.2, beside=lives) as url:
        run = drive(url, [post("/learn", b"{}")], 10.0, 0.1, connections=1, probe=get("/livez"))
    assert len(run.latencies) == 1 and run.acks == [7]
    assert len(run.probes) >= 2 and min(run.probes) < min(run.latencies)


def test_predictions_acknowledge_no_row():
    with server(response(b"200 OK", b'{"model":"bench","seq":7,"score":0.5}')) as url:
        run = drive(url, [post("/predict", b"{}")], 1000.0, 0.003, connections=1)
    assert (len(run.latencies), run.acks) == (3, [])


def test_each_request_may_have_a_target_of_its_own(tmp_path: Path):
    bodies, targets = tmp_path / "bodies", tmp_path / "targets"
    bodies.write_bytes(b"{}\n")
    targets.write_text("/models/a/learn\n/models/b/learn\n")
    heard: list[bytes] = []
    with server(response(b"200 OK", LEARNED), heard=heard) as url:
        order = Order(url, "", bodies, 1000.0, 0.003, 1, CORE, targets=targets)
        done = drive_apart(order).drive
    assert [head.split()[1] for head in heard] == [
        b"/models/%b/learn" % n for n in (b"a", b"b", b"a")
    ]
    assert (done.models, done.acks) == (["bench"] * 3, [7] * 3)


def test_refused_request_ends_the_run():
    with (
        server(response(b"503 Service Unavailable", b"no store")) as url,
        pytest.raises(RuntimeError, match="refused: no store"),
    ):
        drive(url, [post("/learn", b"{}")], 1000.0, 0.003, connections=1)


def test_a_process_of_its_own_tells_what_it_came_to(tmp_path: Path):
    bodies = tmp_path / "bodies"
    bodies.write_bytes(b'{"x":{"1":1},"y":1}\n{}\n')

    def order(url: str) -> Order:
        return Order(url, "/learn", bodies, rate=1000.0, seconds=0.003, connections=1, core=CORE)

    with server(response(b"200 OK", LEARNED)) as url:
        done = drive_apart(order(url))
    assert (len(done.drive.latencies), len(done.drive.slips), done.drive.acks) == (3, 3, [7] * 3)
    assert done.urgency
    with (
        server(response(b"503 Service Unavailable", b"no store")) as url,
        pytest.raises(RuntimeError, match="refused: no store"),
    ):
        drive_apart(order(url))

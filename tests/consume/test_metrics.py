"""Metrics of a consumer: values, the text format as promtool checks it, and the port."""

import socket

import httpx
import pytest
from msgspec.structs import replace

from dualstream.client import BadInput
from dualstream.consume.counters import Counters, Partition
from dualstream.consume.metrics import MetricsServer, exposition
from tests.consume.fakes import FakeLog, FakeReader, FakeServer, away
from tests.consume.support import A, consumer, row, samples
from tests.prometheus import promtool


def test_the_text_is_valid_and_has_every_counter():
    counters = Counters(learned=5, refused=2)
    counters.partitions = {
        "kafka/t/0": Partition(10, 3, 1_000_000),
        "kafka/t/1": Partition(4, 0, 1_000_000),
        "kafka/t/2": Partition(0),
        'kafka/"t\\"/3': Partition(1, 1),
    }
    text = exposition(counters, "clicks", 1_012_500.0)
    promtool("check", "metrics", given=text)
    result = samples(text)
    assert result['dualstream_consume_learned_total{model="clicks"}'] == 5
    assert result['dualstream_consume_refused_total{model="clicks"}'] == 2

    def of(name: str) -> dict[str, float]:
        start = f'dualstream_consume_{name}{{model="clicks",source="kafka/t/'
        return {key[len(start) : -2]: result[key] for key in result if key.startswith(start)}

    assert of("offset") == {"0": 10, "1": 4, "2": 0}
    assert of("lag_rows") == {"0": 3, "1": 0}
    assert of("lag_seconds") == {"0": 12.5, "1": 0.0}


def test_the_lag_grows_while_the_server_is_away():
    log = FakeLog(**{A: [row(n) for n in range(3)]})
    reader, server = FakeReader(log), FakeServer()
    one = consumer(reader, server)
    lags = []

    def more() -> None:
        lags.append(one.counters.partitions[A].lag_rows)
        last = log.messages[A][-1]
        log.messages[A].append(replace(last, offset=last.offset + 1))

    reader.on_wait = more
    server.failures = [None, away(), away(), away()]
    one.turn()
    assert lags == [3, 4, 5] and one.counters.partitions[A].lag_rows == 3
    assert one.counters.waits == 3


def test_metrics_are_served_on_a_port():
    served = MetricsServer(lambda: "a 1\n", "127.0.0.1", 0)
    try:
        got = httpx.get(f"http://127.0.0.1:{served.port}/metrics")
        assert (got.status_code, got.text) == (200, "a 1\n")
        assert got.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert httpx.get(f"http://127.0.0.1:{served.port}/").status_code == 404
    finally:
        served.close()


def test_a_port_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"--metrics-port {port}: .*[Aa]ddress already in use"):
            MetricsServer(lambda: "", "127.0.0.1", port)

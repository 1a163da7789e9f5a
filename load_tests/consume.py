"""`dualstream consume` against a plain consumer loop, and against River in a consumer loop.

The rows are Adult's, 14 features each, in one partition of a Tansu broker. The plain loop posts the
same batches through the same client, and checks nothing. River learns in the loop's process, and
nothing of it is durable. A time begins with the first
batch learned and ends with the last one.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer as KafkaConsumer, TopicPartition
from river import linear_model, preprocessing

from dualstream.client import Client, Source
from dualstream.consume.dead_letters import LoggedLetters
from dualstream.consume.kafka import KafkaReader
from dualstream.consume.loop import Consumer
from dualstream.consume.rows import RowLines
from dualstream.consume.server import ModelServer
from dualstream.service.cli.demo.adult import adult_lines
from dualstream.service.cli.demo.server_process import ServerProcess
from load_tests.measure import FEW_ROUNDS, Row, interleaved
from tests.tansu import Broker, running_tansu

TITLE = "From Kafka"
TOPIC, ROWS, BATCH = "adult", 120_000, 1000
SPEC = {"algorithm": "dual_ascent", "features": {"kind": "hashed"}}
# Tansu begins a group after half of the session timeout.
SHORT = {"session.timeout.ms": "1000", "heartbeat.interval.ms": "200"}


def rows() -> Iterator[Row]:
    """Rows a second of each side."""
    with (
        tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder,
        running_tansu(Path(folder) / "tansu.log") as tansu,
        ServerProcess(f"sqlite:///{folder}/bench.db") as server,
        Client(server.url) as client,
    ):
        tansu.create(TOPIC)
        tansu.send(TOPIC, list(map(_message, adult_lines()[:30_000])) * 4)
        sides: dict[str, Callable[[], float]] = {
            "ours": lambda: _consumed(tansu, client),
            "plain": lambda: _plain(tansu, client),
            "river": lambda: _river(tansu),
        }
        figures = interleaved(sides, FEW_ROUNDS)
    what = "`dualstream consume`, 1,000 rows a batch, SQLite"
    yield Row(what, "rows/s", figures["ours"], "plain loop", figures["plain"], goal=0.9)
    yield Row(what, "rows/s", figures["ours"], "River in the loop", figures["river"], goal=10.0)


def about() -> list[str]:
    """What the figures mean."""
    return [str(__doc__).partition("\n\n")[2].strip()]


def _message(line: bytes) -> bytes:
    label, *entries = line.decode().split()
    x = {f"f{entry.partition(':')[0]}": 1 for entry in entries}
    return json.dumps({"x": x, "y": int(label == "+1")}).encode()


def _consumed(tansu: Broker, client: Client) -> float:
    client.create("bench", SPEC)
    reader = KafkaReader(tansu.brokers, [TOPIC], f"bench-{time.time_ns()}", SHORT, print)
    with closing(reader):
        consumer = Consumer(
            *(reader, ModelServer(client, "bench"), RowLines(), LoggedLetters(print)),
            max_rows=BATCH,
            max_bytes=1024 * 1024,
            max_wait_s=0.2,
        )
        while not reader.assigned():
            reader.read(1, 0.01)
        while not consumer.counters.learned:
            consumer.turn()
        before, began = consumer.counters.learned, time.perf_counter()
        while consumer.counters.learned < ROWS:
            consumer.turn()
        took = time.perf_counter() - began
    client.delete("bench")
    return (ROWS - before) / took


def _batches(tansu: Broker) -> Iterator[tuple[int, list[bytes]]]:
    """First offset and values of each batch."""
    options = {"bootstrap.servers": tansu.brokers, "group.id": "plain", "log_level": 0}
    consumer = KafkaConsumer(options)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    offset = 0
    with closing(consumer):
        while offset < ROWS:
            values = [one.value() or b"" for one in consumer.consume(BATCH, 0.2)]
            if values:
                yield offset, values
                offset += len(values)


def _plain(tansu: Broker, client: Client) -> float:
    def learn(offset: int, values: list[bytes]) -> None:
        source = Source("plain", offset, offset + len(values) - 1, first=offset == 0)
        client.learn_lines("bench", b"\n".join(values), source=source)

    client.create("bench", SPEC)
    speed = _timed(tansu, learn)
    assert client.get("bench").samples == ROWS
    client.delete("bench")
    return speed


def _timed(tansu: Broker, learn: Callable[[int, list[bytes]], None]) -> float:
    """Rows a second after the first batch."""
    before, began = 0, 0.0
    for offset, values in _batches(tansu):
        learn(offset, values)
        if not before:
            before, began = len(values), time.perf_counter()
    return (ROWS - before) / (time.perf_counter() - began)


def _river(tansu: Broker) -> float:
    model = preprocessing.StandardScaler() | linear_model.LogisticRegression()

    def learn(_: int, values: list[bytes]) -> None:
        for value in values:
            row = json.loads(value)
            model.predict_proba_one(row["x"])
            model.learn_one(row["x"], row["y"] == 1)

    return _timed(tansu, learn)

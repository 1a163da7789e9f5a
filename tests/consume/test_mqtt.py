"""The reader of MQTT topics on a real Mosquitto, and `dualstream consume mqtt://...`."""

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from typer.testing import CliRunner

from dualstream.client import BadInput, Client
from dualstream.consume.batch import CursorMove, Outcome, Row
from dualstream.consume.loop import Consumer
from dualstream.consume.mqtt import MqttReader, parse_mqtt
from dualstream.consume.reader import Message, ReaderError
from dualstream.consume.rows import RowLines
from dualstream.service.cli import app
from tests.consume.fakes import FakeServer
from tests.consume.support import Letters, numbers, row, started, until
from tests.mosquitto import Mosquitto, environment, running_mosquitto, tool
from tests.service.conftest import shared_server

__all__ = ["shared_server"]

SPEC = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}


@pytest.fixture(scope="module")
def mqtt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with running_mosquitto(tmp_path_factory.mktemp("mqtt")) as broker:
        yield broker


@pytest.fixture
def reading() -> Iterator[Callable[..., MqttReader]]:
    """Makes readers, which are closed afterwards."""
    made: list[MqttReader] = []

    def read(
        url: str, client_id: str, window: int = 1000, said: list[str] | None = None
    ) -> MqttReader:
        lines = [] if said is None else said
        made.append(MqttReader(parse_mqtt(url), client_id, window, lines.append))
        return made[-1]

    yield read
    for one in made:
        one.close()


class Server(FakeServer):
    """A server whose answers acknowledge the messages."""

    reader: MqttReader

    def learn(self, move: CursorMove, rows: Sequence[Row]) -> Outcome:
        outcome = super().learn(move, rows)
        self.reader.acknowledge(move.end)
        return outcome


def consumer(reader: MqttReader, server: Server, **options: Any) -> Consumer:
    options = {"max_rows": 20, "max_bytes": 1_000_000, "max_wait_s": 0.02} | options
    server.reader = reader
    return Consumer(reader, server, RowLines(), Letters(), **options)


def read(reader: MqttReader, count: int) -> list[Message]:
    """This number of messages; then nothing more comes."""
    results: list[Message] = []
    deadline = time.monotonic() + 60
    while len(results) < count:
        assert time.monotonic() < deadline, results
        results += reader.read(count, 0.1)
    assert reader.read(1, 0.1) == []
    return results


def test_messages_are_counted_from_the_cursor_and_delivered_until_they_are_learned(mqtt, reading):
    url = f"mqtt://{mqtt.place}/count"
    first = reading(url, "count", window=5)
    mqtt.send("count", [row(n) for n in range(12)])
    first.start("mqtt/count", 100)
    # The broker waits for acknowledgements after as many messages as the window.
    assert [one.offset for one in read(first, 5)] == [100, 101, 102, 103, 104]
    first.acknowledge(103)
    assert [one.offset for one in first.read(1, 30.0)] == [105]
    first.start("mqtt/count", 200)  # the cursor is another one
    assert [one.offset for one in first.read(2, 30.0)] == [200, 201]
    assert [one.offset for one in first.read(1, 30.0)] == [202]
    deadline = time.monotonic() + 60
    while mqtt.log.read_text().count("Received PUBACK from count ") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.close()
    second = reading(url, "count")
    second.start("mqtt/count", 103)
    result = read(second, 9)
    assert [json.loads(one.value)["x"]["n"] for one in result] == list(range(3, 12))
    assert [one.offset for one in result] == list(range(103, 112))


def test_wildcards_retained_messages_and_any_quality_of_service(mqtt, reading):
    mqtt.send("plant/a/heat", [b"old"], retain=True)
    reader = reading(f"mqtt://{mqtt.place}/plant/+/heat", "wild")
    reader.start("mqtt/wild", 0)
    mqtt.send("plant/a/cold", [b"no"])
    for qos in (0, 1, 2):
        mqtt.send(f"plant/{qos}/heat", [b"%d" % qos], qos, unit="C")
    mqtt.send("plant/a/heat", [b"new"], retain=True)
    result = read(reader, 4)
    assert [one.value for one in result] == [b"0", b"1", b"2", b"new"]
    assert [one.key for one in result][:2] == [b"plant/0/heat", b"plant/1/heat"]
    assert result[0].headers == (("unit", b"C"),) and result[0].timestamp_ms is None
    assert all(reader.lag("mqtt/wild", n) is None for n in (0, 4))


def test_readers_of_a_shared_subscription_divide_the_messages(mqtt, reading):
    url, result = f"mqtt://{mqtt.place}/$share/all/shared/%23", list[Message]()
    both = [reading(url, f"shared-{n}") for n in range(2)]
    mqtt.send("shared/a", [row(n) for n in range(60)])
    deadline = time.monotonic() + 60
    while len(result) < 60:
        assert time.monotonic() < deadline
        result += [one for reader in both for one in reader.read(60, 0.1)]
    assert sorted(json.loads(one.value)["x"]["n"] for one in result) == list(range(60))
    assert len({one.source for one in result}) == 2


def test_the_broker_is_restarted_in_the_middle(tmp_path, reading):
    """What was read and not learned is delivered again, and the old message ids are not used."""
    with running_mosquitto(tmp_path / "mqtt") as broker:
        server, said = Server(), list[str]()
        rows = [{**json.loads(row(n)), "id": f"m{n}"} for n in range(60)]
        one = consumer(reading(f"mqtt://{broker.place}/restart", "restart", 40, said), server)
        broker.send("restart", [json.dumps(row).encode() for row in rows])
        until(lambda: len(server.learned) >= 20, one)
        broker.stop()
        one.turn()
        broker.start()
        until(lambda: len(server.learned) == 60, one)
        assert numbers(server) == list(range(60)) and len(said) == 2, said
        assert "the connection of mqtt/restart is lost" in said[0] and "answers" in said[1]


def test_a_lost_session_is_reported(tmp_path, reading):
    with running_mosquitto(tmp_path / "mqtt") as broker:
        server, said = Server(), list[str]()
        one = consumer(reading(f"mqtt://{broker.place}/lose", "lose", said=said), server)
        broker.kill()
        broker.start()
        until(lambda: "lost the session" in said[-1] if said else False, one)

        def is_learned() -> bool:
            broker.send("lose", [row(0)])  # no message arrives before the new subscription
            return 0 in numbers(server)

        until(is_learned, one)


def test_the_bytes_of_messages_in_memory_are_bounded(mqtt, reading, monkeypatch):
    """Those that do not fit come again, each is learned once, and nothing is logged."""
    monkeypatch.setattr("dualstream.consume.mqtt.MAX_BYTES", 50_000)
    said, server, most = list[str](), Server(), list[int]()
    reader = reading(f"mqtt://{mqtt.place}/large", "large", said=said)
    one = consumer(reader, server, max_rows=3)
    rows = [row(n)[:-1] + b', "z": "%b"}' % (b"z" * 8_000) for n in range(16)]
    rows[8] = rows[8].replace(b"z" * 8_000, b"z" * 90_000)
    mqtt.send("large", rows)

    def is_done() -> bool:
        most.append(sum(len(message.payload) for message in list(reader._waiting)))
        return len(server.learned) >= 16

    until(is_done, one)
    assert numbers(server) == list(range(16)) and said == []
    assert server.cursors == {"mqtt/large": 16}
    assert sorted(most)[-1] < 91_000 and max(n for n in most if n < 90_000) <= 50_000


def test_messages_of_qos_0_that_do_not_fit_are_lost_with_a_message(mqtt, reading, monkeypatch):
    monkeypatch.setattr("dualstream.consume.mqtt.MAX_BYTES", 50_000)
    said = list[str]()
    reader = reading(f"mqtt://{mqtt.place}/lossy", "lossy", said=said)
    reader.start("mqtt/lossy", 0)
    mqtt.send("lossy", [b"z" * 8_000] * 12, 0)
    mqtt.send("lossy", [b"small"], 0)
    result = read(reader, 6)
    assert [len(one.value) for one in result] == [8_000] * 5 + [5]
    assert said == ["MQTT: messages of QoS 0 are lost: 0 MiB wait"]


@contextmanager
def broker_that_answers(*packets: bytes) -> Iterator[str]:
    """A broker that sends one packet for each that it receives; yields its place."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, suppress(ConnectionError):  # the client closes it
                for packet in packets:
                    connection.recv(1000)
                    connection.sendall(packet)
                while connection.recv(1000):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def test_a_second_client_of_the_same_id_ends_the_first(reading):
    """Mosquitto 2.0 closes the connection without the reason; others send it."""
    suback = b"\x90\x04\x00\x01\x00\x01"
    with broker_that_answers(b"\x20\x03\x00\x00\x00", suback + b"\xe0\x01\x8e") as position:
        with pytest.raises(ReaderError, match="mqtt/twice: another client has .*choose a --group"):
            reading(f"mqtt://{position}/t", "twice").read(1, 30.0)


def test_errors_name_what_is_wrong(mqtt, reading, tmp_path, monkeypatch):
    with pytest.raises(ReaderError, match="no MQTT broker answers at 127.0.0.1:9: .*refused"):
        reading("mqtt://ann:secret@127.0.0.1:9/t", "m")
    mqtt.subscribe("earlier", "other/#")
    reader = reading(f"mqtt://{mqtt.place}/new", "earlier")
    mqtt.send("other/a", [b"{}"])
    with pytest.raises(ReaderError, match="also has the topic 'other/a'.*choose another --group"):
        read(reader, 1)
    with (
        monkeypatch.context() as soon,
        broker_that_answers() as position,
        pytest.raises(ReaderError, match=f"the MQTT broker at {position} does not answer"),
    ):
        soon.setattr("dualstream.consume.mqtt.START_S", 0.3)
        reading(f"mqtt://{position}/t", "m")
    with broker_that_answers(b"\x20\x03\x00\x00\x00", b"\x90\x04\x00\x01\x00\x87") as position:
        with pytest.raises(ReaderError, match="refuses the topics 'shut/#': Not authorized"):
            reading(f"mqtt://{position}/shut/#", "m")
    for wrong in ("h:1", "h:1/", "/t", ":pw@h:x/t", "h?a/b"):
        with pytest.raises(BadInput, match="topics are mqtt://HOST:PORT/TOPIC, got ") as bad:
            parse_mqtt(f"mqtt://{wrong}")
        assert "pw" not in str(bad.value)
    for wrong in ("a#", "#/a", "a/b+", "+a/c", "a/#/b"):
        with pytest.raises(BadInput, match="is no topic filter"):
            parse_mqtt(f"mqtt://h/{wrong}")
    result = parse_mqtt("mqtts://ann:p%40w@h//a/+/%2523/#")
    assert result == ("h", 8883, True, "ann", "p@w", "/a/+/%23/#")
    with pytest.raises(BadInput, match="up to 250 printable ASCII characters"):
        reading(f"mqtt://{mqtt.place}/t", "ü")


# paho leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_passwords_and_tls(reading, tmp_path, monkeypatch):
    passwords, key = tmp_path / "passwords", tmp_path / "key.pem"
    passwords.touch(mode=0o600)
    add = [tool("mosquitto_passwd"), "-b", str(passwords), "ann", "secret"]
    subprocess.run(add, check=True, env=environment())
    made = ("-keyout", key, "-out", key, "-subj", "/CN=localhost", "-nodes", "-days", "1")
    named = ("-addext", "subjectAltName=DNS:localhost")
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", *made, *named)
    subprocess.run(command, check=True, capture_output=True)
    lines = (f"password_file {passwords}", f"certfile {key}", f"keyfile {key}")
    with running_mosquitto(tmp_path / "tls", *lines) as broker:
        url = f"mqtts://ann:secret@localhost:{broker.port}"
        with pytest.raises(ReaderError, match="no MQTT broker answers .*certificate verify failed"):
            reading(f"{url}/a", "m")
        monkeypatch.setenv("SSL_CERT_FILE", str(key))
        reading(f"{url}/a", "m").close()
        with pytest.raises(ReaderError, match="refuses the connection: Not authorized"):
            reading(f"{url}/a".replace("secret", "wrong"), "m")
        # The password is changed: the process waits, and says so once.
        said = list[str]()
        reading(f"{url}/a", "m", said=said)
        broker.stop()
        passwords.write_bytes(b"")
        broker.start()
        deadline = time.monotonic() + 60
        while len(said) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert "is lost" in said[0] and "refuses the connection: Not authorized" in said[1]


def learned(client: Client, count: int) -> None:
    """Wait until the model has learned this number of rows."""
    deadline = time.monotonic() + 60
    while (client.get("clicks").samples or 0) < count:
        assert time.monotonic() < deadline, client.get("clicks").samples
        time.sleep(0.02)


def test_the_command_learns_topics_and_writes_dead_letters(mqtt, shared_server, tmp_path):
    source, dead = f"mqtt://{mqtt.place}/clicks/#", tmp_path / "dead.ndjson"
    rows = [{"x": {"n": n % 13}, "y": int(n % 3 == 0), "id": f"m{n}"} for n in range(300)]
    mqtt.subscribe("dualstream-clicks", "clicks/#")
    with Client(shared_server.url) as client:
        for model in ("clicks", "same"):
            client.create(model, SPEC)
        flags = ("--column", "key=topic", "--dead-letter", str(dead), "--json")
        with started(shared_server, source, *flags) as process:
            mqtt.send("clicks/a", [json.dumps(one).encode() for one in rows[:200]])
            mqtt.send("clicks/a", [b"{", b'{"x": {}}', json.dumps(rows[7]).encode()])
            mqtt.send("clicks/b", [json.dumps(one).encode() for one in rows[200:]])
            learned(client, 300)
            process.send_signal(signal.SIGTERM)
            said, errors = process.communicate(timeout=100)
        counted = json.loads(said)
        assert process.returncode == 0 and "an id is then learned again" in errors
        assert (counted["learned"], counted["duplicates"], counted["refused"]) == (300, 1, 2)
        assert counted["partitions"]["mqtt/dualstream-clicks"]["lag_rows"] is None
        letters = [json.loads(line) for line in dead.read_text().splitlines()]
        assert [(one["offset"], one["key"]) for one in letters] == [
            (200, "clicks/a"),
            (201, "clicks/a"),
        ]
        for number, one in enumerate(rows):
            one["x"] = {"topic": "clicks/a" if number < 200 else "clicks/b"} | one["x"]
        client.learn_iter("same", rows)
        mine, theirs = client.get("clicks", digest=True), client.get("same", digest=True)
        assert mine.state_digest == theirs.state_digest
        results = [(one.name, one.next) for one in client.sources("clicks")]
        assert results == [("mqtt/dualstream-clicks", 303)]
        for model in ("clicks", "same"):
            client.delete(model)


def test_a_message_without_an_id_is_learned_again_if_it_is_delivered_again(mqtt, shared_server):
    """As the guide says; the kill is between the answer of the server and the acknowledgement."""
    source = f"mqtt://{mqtt.place}/none"
    mqtt.subscribe("dualstream-clicks", "none")
    mqtt.send("none", [row(1), json.dumps({**json.loads(row(2)), "id": "m2"}).encode()])
    with Client(shared_server.url) as client:
        client.create("clicks", SPEC)
        reader = MqttReader(parse_mqtt(source), "dualstream-clicks", 10, print)
        reader.start(reader.source, 0)
        lines = b"\n".join(one.value or b"" for one in read(reader, 2))
        reader.close()
        client.learn_iter("clicks", [json.loads(line) for line in lines.split(b"\n")])
        with started(shared_server, source):
            learned(client, 3)
        assert client.get("clicks").samples == 3
        client.delete("clicks")


def test_options_that_do_not_apply_are_refused(mqtt, shared_server, monkeypatch):
    source = f"mqtt://{mqtt.place}/t"

    def refused(*flags: str) -> str:
        inputs = ["consume", source, "--model", "clicks", "--url", shared_server.url, *flags]
        done = CliRunner().invoke(app, inputs)
        assert done.exit_code == 2 and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    for flags, named in (
        (["--reset", "latest"], "--reset does not apply to mqtt:// sources: topics have no begin"),
        (["--until-end"], "--until-end does not apply to mqtt:// sources"),
        (["--labels"], "--labels is an option of kafka:// sources"),
        (["--predict-to", "t"], "--predict-to is an option of kafka:// sources"),
        (["--kafka", "a=b"], "--kafka is an option of kafka:// sources"),
        (["--column", "offset=n"], "--column offset: messages of MQTT have no offset"),
        (["--column", "timestamp=n"], "--column timestamp: messages of MQTT have no timestamp"),
        (["--dead-letter", "mqtt://h/t"], "--dead-letter must be a file for this source"),
    ):
        assert named in refused(*flags)
    monkeypatch.setattr("dualstream.consume.schemes.find_spec", lambda name: None)
    assert refused() == "mqtt:// needs paho-mqtt: pip install 'dualstream[mqtt]'\n"

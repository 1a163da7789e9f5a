"""Dead letters in the log, in a file, and in a Kafka topic."""

import json
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest

from dualstream.client import BadInput
from dualstream.consume.dead_letters import DeadLetter, FileLetters, LoggedLetters
from dualstream.consume.kafka_writer import KafkaLetters, KafkaWriter
from dualstream.consume.reader import Message, ReaderError
from tests.tansu import running_tansu

TEXT = DeadLetter(
    Message("kafka/t/0", 3, b'{"a": 1}', b"ann", 1715000000123, [("tenant", b"acme")]), "no label"
)
BINARY = DeadLetter(Message("kafka/t/0", 4, b"\xff\x00", None, None, [("h", None)]), "not JSON")
TOMBSTONE = DeadLetter(Message("kafka/t/1", 5, None, b"k"), "a tombstone")


def test_the_log_has_the_first_ones_and_the_number_of_the_others():
    said = []
    LoggedLetters(said.append).write([TEXT] * 7)
    assert said[0] == "refused: kafka/t/0 offset 3: no label"
    assert len(said) == 6 and said[-1] == "refused: 2 more of this batch"


def test_a_file_has_one_object_per_line(tmp_path):
    path = tmp_path / "dead.ndjson"
    letters = FileLetters(path)
    letters.write([TEXT, BINARY])
    letters.write([TOMBSTONE])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "source": "kafka/t/0",
            "offset": 3,
            "reason": "no label",
            "timestamp": "2024-05-06T12:53:20.123000Z",
            "key": "ann",
            "value": '{"a": 1}',
            "headers": [{"name": "tenant", "value": "acme"}],
        },
        {
            "source": "kafka/t/0",
            "offset": 4,
            "reason": "not JSON",
            "key": None,
            "value_base64": "/wA=",
            "headers": [{"name": "h", "value": None}],
        },
        {"source": "kafka/t/1", "offset": 5, "reason": "a tombstone", "key": "k", "value": None},
    ]


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    with pytest.raises(BadInput, match="cannot write the file: No such file or directory"):
        FileLetters(tmp_path / "no" / "dead.ndjson")


def test_pipes_and_devices_are_refused_at_the_start(tmp_path):
    """They cannot be synced, so each write failed, and the consumer tried for ever."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), Path("/dev/full")):
        with pytest.raises(BadInput, match=f"--dead-letter {path}: .* choose a regular file"):
            FileLetters(path)


@contextmanager
def limited(size: int) -> Iterator[None]:
    """A file system that is full after this size of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_letter_that_does_not_fit_leaves_nothing(tmp_path):
    path = tmp_path / "dead.ndjson"
    letters = FileLetters(path)
    letters.write([TEXT])
    whole = path.read_bytes()
    for size in (len(whole), len(whole) + 1, 2 * len(whole) - 1):
        with limited(size), pytest.raises(OSError, match=r"is full|too large"):
            letters.write([TEXT])
        assert path.read_bytes() == whole, size
    letters.write([TEXT])
    assert path.read_bytes() == 2 * whole


def test_a_letter_after_a_kill_begins_on_a_line_of_its_own(tmp_path):
    path = tmp_path / "dead.ndjson"
    path.write_bytes(b'{"source": "kaf')
    FileLetters(path).write([TOMBSTONE])
    first, second = path.read_bytes().splitlines()
    assert first == b'{"source": "kaf' and json.loads(second)["offset"] == 5


def test_processes_append_to_one_file(tmp_path):
    """One fails again and again, and removes nothing of the other."""
    path = tmp_path / "dead.ndjson"
    stop = threading.Event()

    class Torn(FileIO):
        def write(self, lines):
            super().write(lines[:7])
            raise OSError("full")

    class Failing(FileLetters):
        def _open(self):
            return Torn(self._path, "ab+")

    def fail() -> None:
        while not stop.is_set():
            with pytest.raises(OSError, match="full"):
                Failing(path).write([BINARY])

    thread = threading.Thread(target=fail)
    thread.start()
    for _ in range(100):
        FileLetters(path).write([TOMBSTONE])
    stop.set()
    thread.join()
    assert [json.loads(line)["offset"] for line in path.read_text().splitlines()] == [5] * 100


def test_a_topic_has_the_messages_with_the_reason_as_a_header(tmp_path):
    with running_tansu(tmp_path / "log") as tansu:
        tansu.create("dead")
        said = []
        KafkaLetters(KafkaWriter(tansu.brokers, "dead", {}, said.append)).write(
            [TEXT, BINARY, TOMBSTONE]
        )
        first, second, third = tansu.messages("dead", 3)
        assert (first.value(), first.key()) == (b'{"a": 1}', b"ann")
        assert first.headers() == [
            ("tenant", b"acme"),
            ("dead.source", b"kafka/t/0"),
            ("dead.offset", b"3"),
            ("dead.reason", b"no label"),
        ]
        assert second.value() == b"\xff\x00" and second.headers()[0] == ("h", None)
        assert (third.value(), third.key()) == (None, b"k")
        with pytest.raises(ReaderError, match="the topic 'no' does not exist at 127"):
            KafkaWriter(tansu.brokers, "no", {}, said.append)


def test_a_message_that_is_too_large_for_the_topic_loses_its_value():
    class Small:
        def __init__(self) -> None:
            self.written = []

        def write(self, records):
            large = [n for n, record in enumerate(records) if len(record.value or b"") > 4]
            self.written += [record for n, record in enumerate(records) if n not in large]
            return large

    small = Small()
    KafkaLetters(small).write([TEXT, BINARY])
    second, first = small.written
    assert (first.value, first.key) == (None, b"ann")
    assert first.headers[-1] == ("dead.value-left-out", b"8 bytes")
    assert second.value == b"\xff\x00"


def test_a_broker_that_is_away_is_an_error_that_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("dualstream.consume.kafka_writer.DELIVERY_S", 1)
    with running_tansu(tmp_path / "log") as tansu:
        tansu.create("dead")
        letters = KafkaLetters(KafkaWriter(tansu.brokers, "dead", {}, lambda line: None))
    with pytest.raises(OSError, match="cannot write to the topic 'dead'"):
        letters.write([TEXT])

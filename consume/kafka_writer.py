"""Writer of Kafka topics: dead letters, and predictions."""

from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, Message as KafkaMessage, Producer

from dualstream.client import BadInput
from dualstream.consume.dead_letters import DeadLetter
from dualstream.consume.kafka import ANSWER_S, client_settings, error_text
from dualstream.consume.reader import ReaderError, Record
from dualstream.wire.plural import plural

DELIVERY_S = 30
_MAX_BYTES = 100_000_000
"""The broker decides which messages are too large."""
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)


class KafkaWriter:
    """Writes messages to one topic. Raises ReaderError if the topic cannot be written."""

    def __init__(
        self, brokers: str, topic: str, settings: Mapping[str, str], log: Callable[[str], None]
    ) -> None:
        self._topic = topic
        options = {"enable.idempotence": True, "message.max.bytes": _MAX_BYTES}
        options |= client_settings(brokers, settings, log)
        options["message.timeout.ms"] = DELIVERY_S * 1000
        try:
            self._producer = Producer(options)
        except (KafkaException, ValueError, TypeError) as wrong:
            raise BadInput(f"--kafka: {error_text(wrong)}") from None
        try:
            # To ask a broker for one topic can create it.
            topics = self._producer.list_topics(timeout=ANSWER_S).topics
        except KafkaException as away:
            raise ReaderError(f"no Kafka broker answers at {brokers}: {error_text(away)}") from None
        if topic not in topics:
            raise ReaderError(f"the topic {topic!r} does not exist at {brokers}; create it")

    def write(self, records: Sequence[Record]) -> list[int]:
        """Write messages; returns the indices of those that are too large for the broker.

        Returns when the broker has acknowledged them. Raises OSError if it has not.
        """
        failed: list[tuple[int, KafkaError]] = []
        for index, record in enumerate(records):
            self._send(index, record, failed)
        left = self._producer.flush(DELIVERY_S + 5)
        wrong = [error for _, error in failed if error.code() not in _TOO_LARGE]
        if wrong or left:
            why = wrong[0].str() if wrong else f"{plural(left, 'message')} not acknowledged"
            raise OSError(f"cannot write to the topic {self._topic!r}: {why}")
        return sorted(index for index, _ in failed)

    def _send(self, index: int, record: Record, failed: list[tuple[int, KafkaError]]) -> None:
        def delivered(error: KafkaError | None, _: KafkaMessage) -> None:
            if error is not None:
                failed.append((index, error))

        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=delivered,
                )
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as wrong:
                failed.append((index, wrong.args[0]))
                return


class KafkaLetters:
    """Dead-letter topic: the message itself, and dead.source, dead.offset, dead.reason as headers.

    A message that is too large for the topic is written without its value.
    """

    def __init__(self, writer: KafkaWriter) -> None:
        self._writer = writer

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Write them. Raises OSError."""
        records = [_record(letter) for letter in letters]
        large = self._writer.write(records)
        if large:
            self._writer.write([_without_value(records[index]) for index in large])


def _record(letter: DeadLetter) -> Record:
    message, reason = letter
    dead = [
        ("dead.source", message.source.encode()),
        ("dead.offset", str(message.position).encode()),
        ("dead.reason", reason.encode()),
    ]
    return Record(message.value, message.key, [*message.headers, *dead])


def _without_value(record: Record) -> Record:
    size = len(record.value or b"")
    left_out = ("dead.value-left-out", f"{size} bytes".encode())
    return Record(None, record.key, [*record.headers, left_out])

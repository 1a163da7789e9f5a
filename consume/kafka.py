"""Reader of Kafka topics, and the settings of its clients.

The group spreads partitions over processes; only `--route` uses its offsets. A partition that is
assigned stays paused until `start` names an offset, which is the model's cursor.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message as KafkaMessage,
    TopicPartition,
)

from dualstream.client import BadInput
from dualstream.consume.reader import Bounds, Message, Reader, ReaderError

ANSWER_S = 10.0
"""Seconds to wait for a broker's answer."""
POLL_S = 0.1
QUIET_S = 60.0
"""Seconds before the same error is logged again."""
_OURS = {
    "bootstrap.servers": "it is in the URL",
    "group.id": "use --group",
    "enable.auto.commit": "the model's cursors are the offsets",
    "enable.auto.offset.store": "the model's cursors are the offsets",
    "auto.offset.reset": "use --reset",
    "partition.assignment.strategy": "partitions are assigned as a whole",
    "enable.partition.eof": "it is always on",
}
_FATAL = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._FATAL,
)


def source_name(topic: str, partition: int) -> str:
    """Name of a partition in the model's cursors."""
    return f"kafka/{topic}/{partition}"


def parse_settings(options: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE or @FILE options -> librdkafka settings. Raises BadInput."""
    settings: dict[str, str] = {}
    for one in _lines(options):
        name, sign, value = one.partition("=")
        if not sign:
            raise BadInput(f"--kafka must be KEY=VALUE, such as security.protocol=SSL, got {one!r}")
        if name in _OURS:
            raise BadInput(f"--kafka {name}: {_OURS[name]}")
        settings[name.strip()] = value.strip()
    return settings


def _lines(options: Sequence[str]) -> Iterator[str]:
    """The options, with each @FILE replaced by its lines; # begins a comment line."""
    for one in options:
        if not one.startswith("@"):
            yield one
            continue
        try:
            lines = Path(one[1:]).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as wrong:
            raise BadInput(f"--kafka {one}: cannot read the file: {wrong}") from None
        yield from (line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def client_settings(
    brokers: str, settings: Mapping[str, str], log: Callable[[str], None]
) -> dict[str, Any]:
    """Settings of every Kafka client: brokers, TLS, SASL, and errors as one line each."""
    said: dict[str, float] = {}

    def on_error(error: KafkaError) -> None:
        # librdkafka reconnects by itself, and reports each attempt.
        line, now = error.str().partition(" (after ")[0], time.monotonic()
        is_said = now - said.get(line, -QUIET_S) < QUIET_S
        if not is_said and error.code() != KafkaError._ALL_BROKERS_DOWN:  # its cause is reported
            said[line] = now
            log(f"Kafka: {line}")

    required = {"bootstrap.servers": brokers, "log_level": 0, "error_cb": on_error}
    return {**settings, **required}


class KafkaReader(Reader):
    """Reads topics as a member of a group.

    Raises ReaderError if a topic does not exist or no broker answers, BadInput for a setting that
    librdkafka does not know.
    """

    def __init__(
        self,
        brokers: str,
        topics: Sequence[str],
        group: str,
        settings: Mapping[str, str],
        log: Callable[[str], None],
    ) -> None:
        self.epoch, self.reads_ahead = 0, True
        self._log, self._group = log, group
        self._last_error = ""
        self._assigned: dict[str, TopicPartition] = {}
        self._next: dict[str, int] = {}
        """Next offset of each started partition."""
        self._lost: set[str] = set()
        self._stopped: set[str] = set()
        """Partitions that librdkafka no longer reads, because their offset is not in the log."""
        self._ended: set[str] = set()
        """Partitions that were read to their end."""
        self._kept: list[Message] = []
        """Messages that arrived while reading was paused."""
        self._is_paused = False
        options = client_settings(brokers, settings, self._note) | {
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        try:
            self._consumer = Consumer(options)
        except (KafkaException, ValueError, TypeError) as wrong:
            raise BadInput(f"--kafka: {error_text(wrong)}") from None
        try:
            self._counts = {topic: self._partitions(topic, brokers) for topic in topics}
        except ReaderError:
            self._consumer.close()
            raise
        self._consumer.subscribe(list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _note(self, line: str) -> None:
        self._last_error = line
        self._log(line)

    def _partitions(self, topic: str, brokers: str) -> int:
        """Number of partitions of a topic. Raises ReaderError."""
        try:
            metadata = self._consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
        except KafkaException as away:
            self._consumer.poll(0)  # reports the cause
            why = self._last_error.removeprefix("Kafka: ") or error_text(away)
            raise ReaderError(f"no Kafka broker answers at {brokers}: {why}") from None
        if metadata.error is not None:
            raise ReaderError(f"the topic {topic!r} cannot be read: {metadata.error.str()}")
        return len(metadata.partitions)

    # -- partitions --------------------------------------------------------------------------------

    def assigned(self) -> Sequence[str]:
        """Names of the assigned partitions."""
        return list(self._assigned)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            one.offset = 0  # not the group's offset; `start` seeks to the cursor
        consumer.assign(partitions)
        if partitions:
            consumer.pause(partitions)
        else:
            count = sum(self._counts.values())
            self._log(
                f"Kafka: other processes of the group {self._group} have all partitions ({count});"
                " waiting for one"
            )
        self._change({source_name(one.topic, one.partition): one for one in partitions})

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.unassign()
        self._change({})

    def _change(self, assigned: dict[str, TopicPartition]) -> None:
        self.epoch += 1
        self._assigned = assigned
        self._next, self._kept = {}, []
        self._lost, self._stopped, self._ended = set(), set(), set()

    def bounds(self, source: str) -> Bounds | None:
        """Ask for the first and the end offset of a partition. None also for a revoked one."""
        one = self._assigned.get(source)  # `read` in a thread may revoke it
        if one is None:
            return None
        try:
            first, end = self._consumer.get_watermark_offsets(one, timeout=ANSWER_S)
        except KafkaException as away:
            self._log(f"{source}: no answer from Kafka: {error_text(away)}")
            return None
        return Bounds(first, end, first)

    def is_new(self, source: str) -> bool:
        """Was the partition added since this process began?"""
        one = self._assigned[source]
        return one.partition >= self._counts.get(one.topic, 0)

    def start(self, source: str, offset: int) -> None:
        """Read the partition from this offset."""
        one = self._assigned[source]
        position = TopicPartition(one.topic, one.partition, offset)
        self._next[source] = offset
        self._kept = [message for message in self._kept if message.source != source]
        self._ended.discard(source)
        if source in self._stopped:
            self._stopped.discard(source)
            self._assign_again()
            return
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                self._consumer.seek(position)
                break
            except KafkaException as early:
                # An assignment is applied by another thread of librdkafka.
                if _code(early) != KafkaError._STATE or time.monotonic() > deadline:
                    raise ReaderError(f"{source}: cannot seek: {error_text(early)}") from None
                time.sleep(0.005)
        if not self._is_paused:
            self._consumer.resume([position])

    def _assign_again(self) -> None:
        """Assign all partitions with their next offsets: librdkafka seeks in no stopped one."""
        positions = {
            name: TopicPartition(one.topic, one.partition, self._next.get(name, 0))
            for name, one in self._assigned.items()
        }
        self._consumer.assign(list(positions.values()))
        paused = [name for name in positions if self._is_paused or name not in self._next]
        if paused:
            self._consumer.pause([positions[name] for name in paused])

    def lost(self) -> set[str]:
        """Partitions whose next offset has left the log."""
        lost, self._lost = self._lost, set()
        return lost

    def is_at_end(self, source: str) -> bool:
        """Has the partition been read to its end?"""
        return source in self._ended and not self._kept

    def lag(self, source: str, offset: int) -> int | None:
        """Offsets up to the end of the partition, as the last fetch has reported it."""
        one = self._assigned.get(source)
        watermarks = None if one is None else self._consumer.get_watermark_offsets(one, cached=True)
        return max(0, watermarks[1] - offset) if watermarks and watermarks[1] >= 0 else None

    def check_cursor(self, source: str, cursor: int) -> None:
        """Raise ReaderError if the log ends before the cursor, OSError if Kafka does not answer."""
        if cursor <= (self.lag(source, 0) or 0):
            return
        bounds = self.bounds(source)
        if bounds is None:
            raise OSError(f"{source}: the end of the log is unknown")
        if cursor > bounds.end:
            raise ReaderError(self.outside(source, cursor, bounds))

    def committed(self) -> dict[str, int]:
        """The group's committed offsets. Raises OSError."""
        return committed_offsets(self._consumer, list(self._assigned.values()))

    def commit(self, source: str, offset: int) -> None:
        """Commit an offset for the group. Raises OSError, also if the partition has moved."""
        one = self._assigned.get(source)
        try:
            if one is None:
                raise OSError(f"{source}: the partition has moved")
            position = TopicPartition(one.topic, one.partition, offset)
            self._consumer.commit(offsets=[position], asynchronous=False)
        except KafkaException as away:
            raise OSError(f"{source}: cannot commit the offset: {error_text(away)}") from None

    # -- messages ----------------------------------------------------------------------------------

    def read(self, rows: int, seconds: float) -> list[Message]:
        """Up to `rows` messages, after at most `seconds`."""
        if self._is_paused:
            self._is_paused = False
            if self._next:
                self._consumer.resume([self._assigned[name] for name in self._next])
        kept, self._kept = self._kept, []
        if kept:
            return kept
        return self._messages(self._consumer.consume(rows, seconds))

    def keep_alive(self, seconds: float) -> None:
        """Wait in the group, with all partitions paused."""
        if not self._is_paused and self._next:
            self._consumer.pause([self._assigned[name] for name in self._next])
        self._is_paused = True
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            message = self._consumer.poll(min(left, POLL_S))
            if message is not None:
                self._kept += self._messages([message])

    def _messages(self, received: Sequence[KafkaMessage]) -> list[Message]:
        messages = []
        following, last, name = self._next, None, ""
        for one in received:
            error = one.error()
            if error is not None:
                self._on_error(one, error)
                last = None
                continue
            partition = one.topic(), one.partition()
            if partition != last:  # fields that all messages of a partition share
                last, name = partition, f"kafka/{partition[0]}/{partition[1]}"
                self._ended.discard(name)
            if name in following:
                kind, timestamp = one.timestamp()
                offset, value = one.offset(), one.value()
                assert offset is not None
                following[name] = offset + 1
                key: Any = one.key()
                headers: Any = one.headers() or ()
                messages.append(
                    Message(name, offset, value, key, timestamp if kind else None, headers)
                )
        return messages

    def _on_error(self, one: KafkaMessage, error: KafkaError) -> None:
        topic, partition, code = one.topic(), one.partition(), error.code()
        name = source_name(str(topic), -1 if partition is None else partition)
        if code == KafkaError._PARTITION_EOF:
            self._ended.add(name)
        elif code == KafkaError._AUTO_OFFSET_RESET:
            if name in self._next:
                self._lost.add(name)
                self._stopped.add(name)
        elif code in _FATAL:
            raise ReaderError(f"{topic or 'Kafka'}: {error.str()}")
        elif code != KafkaError._MAX_POLL_EXCEEDED:  # it joins the group again by itself
            self._log(f"Kafka: {error.str()}")

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def committed_offsets(consumer: Consumer, partitions: list[TopicPartition]) -> dict[str, int]:
    """Committed offsets of the consumer's group, by partition. Raises OSError."""
    try:
        positions = consumer.committed(partitions, timeout=ANSWER_S)
    except KafkaException as away:
        raise OSError(f"no committed offsets from Kafka: {error_text(away)}") from None
    return {
        source_name(one.topic, one.partition): one.offset for one in positions if one.offset >= 0
    }


def _code(error: KafkaException) -> int | None:
    first = error.args[0] if error.args else None
    return first.code() if isinstance(first, KafkaError) else None


def error_text(error: BaseException) -> str:
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first)

"""How far another process, which scores rows, has read a Kafka topic."""

import time
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dualstream.consume import kafka
from dualstream.consume.reader import ReaderError


class KafkaProgress:
    """Compares cursors with a topic. Raises ReaderError if the topic does not exist.

    group     group whose committed offsets are the cursors
    cursors   the cursors, if they are not those of the group
    """

    def __init__(
        self,
        brokers: str,
        topic: str,
        group: str,
        cursors: Callable[[], Mapping[str, int]] | None,
        settings: Mapping[str, str],
        log: Callable[[str], None],
    ) -> None:
        self._topic, self._cursors = topic, cursors or self._committed
        # The group is never joined: partitions are assigned by hand.
        options = {
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "queued.min.messages": 1,
        }
        self._consumer = Consumer(kafka.client_settings(brokers, settings, log) | options)
        try:
            self._partitions()
        except OSError as away:
            self._consumer.close()
            raise ReaderError(str(away)) from None

    def _partitions(self) -> list[str]:
        """Names of the partitions. Raises OSError."""
        try:
            metadata = self._consumer.list_topics(self._topic, timeout=kafka.ANSWER_S).topics[
                self._topic
            ]
        except KafkaException as away:
            raise OSError(f"no answer from Kafka: {kafka.error_text(away)}") from None
        if metadata.error is not None:
            raise OSError(f"the topic {self._topic!r} cannot be read: {metadata.error.str()}")
        return [kafka.source_name(self._topic, number) for number in sorted(metadata.partitions)]

    def _committed(self) -> dict[str, int]:
        partitions = [
            TopicPartition(self._topic, int(name.rpartition("/")[2])) for name in self._partitions()
        ]
        return kafka.committed_offsets(self._consumer, partitions)

    def ends(self) -> dict[str, int]:
        """Offset of the next message to be written, by partition. Raises OSError."""
        cursors = self._cursors()
        return {name: self._look(name, cursors.get(name, 0))[1] for name in self._partitions()}

    def is_read(self, ends: Mapping[str, int]) -> bool:
        """Are all messages before `ends` also before the cursors? Raises OSError."""
        cursors = self._cursors()
        for name, end in ends.items():
            cursor = cursors.get(name, 0)
            if cursor < end:
                # The offsets up to the end may have no message: the end of a transaction has none.
                first, _ = self._look(name, cursor)
                if first is not None and first < end:
                    return False
        return True

    def _look(self, source: str, offset: int) -> tuple[int | None, int]:
        """Offset of the first message from `offset` on (None: none), and the end."""
        one = TopicPartition(self._topic, int(source.rpartition("/")[2]), offset)
        self._consumer.assign([one])
        deadline = time.monotonic() + kafka.ANSWER_S
        while time.monotonic() < deadline:
            message = self._consumer.poll(1.0)
            error = None if message is None else message.error()
            if message is not None and (error is None or error.code() == KafkaError._PARTITION_EOF):
                first = message.offset() if error is None else None
                # As the answer to the read has it; not every broker finds it when asked for it.
                _, end = self._consumer.get_watermark_offsets(one, cached=True)
                self._consumer.unassign()
                return first, end
        raise OSError(f"{source}: no answer from Kafka")

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

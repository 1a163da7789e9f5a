"""Counters of one consumer process."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Partition:
    """Progress of a partition.

    offset         cursor: the next offset to learn, or of a Redis stream the id of the last entry
    lag_rows       messages from there to the end; None if unknown
    timestamp_ms   time of the first message that is read and not learned, or of the last learned
    """

    offset: int | str
    lag_rows: int | None = None
    timestamp_ms: int | None = None


@dataclass(slots=True)
class Counters:
    """Counts since the start of the process.

    learned      rows learned, or observed
    predicted    rows without a label that were scored; those after a kill count again
    duplicates   rows that were learned before: posted again, or known by their id
    refused      dead letters: messages that are no rows, and rows that the server refused
    paused       rows that the model's guard has put into quarantine
    moved        batches that were refused, as another consumer was faster or rows were lost
    waits        pauses because the server or the dead-letter queue was away
    """

    learned: int = 0
    predicted: int = 0
    duplicates: int = 0
    refused: int = 0
    paused: int = 0
    moved: int = 0
    waits: int = 0
    partitions: dict[str, Partition] = field(default_factory=dict)

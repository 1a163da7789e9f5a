"""Records that each process counts as lost: not more than were lost, and not fewer.

The count of a process is compared with what it had applied. Acknowledgements and predictions show
by their chain value which entries it had. If those are lost and the process lives on, it has
counted them by the time it is at the journal's end again.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dualstream.service.replica.fork_detection import KEPT_OUTSIDE
from tests.simulation.log import Log
from tests.simulation.store import Store

if TYPE_CHECKING:
    from tests.simulation.world import Worker, World

COUNTED = KEPT_OUTSIDE - 1
"""Number of entries of which each record is counted: those remembered of an evicted model."""


class LossNotes:
    """What each process counted, and its positions in that time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.counted: list[Counter[str]] = []
        """Records that were lost, by model, as each process counted them."""
        self._stood: defaultdict[tuple[str, int, str], set[str]] = defaultdict(set)

    def saw_standing(self, worker: "Worker", log: Log, chain: str) -> None:
        """A replica of this process has applied the entry that ends with `chain`."""
        self._stood[worker.name, worker.began, log.incarnation].add(chain)

    def problems(self, world: "World") -> Iterator[str]:
        """At the end, when each process is at each journal's end."""
        cut = Counter[str]()
        for log in [*self._store.gone, *self._store.logs.values()]:
            cut[log.id] += sum(entry.seq + 1 - entry.first_seq for entry in log.cut)
        for counted in self.counted:
            for model_id, records in counted.items():
                most = cut[model_id]
                if records > most:
                    yield f"{model_id}: {records} lost records were counted, {most} were lost"
        for log in self._store.logs.values():
            for worker in world.workers if log.died else ():
                stood = self._stood[worker.name, worker.began, log.incarnation]
                least, records = least_lost(log, stood), worker.telemetry.lost[log.id]
                if records < least:
                    yield f"{worker.name} counted {records} lost records of {log.id}, of {least}"


def least_lost(log: Log, stood: set[str]) -> int:
    """The least number of records that a process with these chain values must count as lost.

    Records up to a snapshot's seq do not count: a replica loaded from a snapshot has not applied
    them, and a replica overtaken by one cannot know. Of more entries than are remembered, some do.
    """
    sizes: dict[str, int] = {}
    for chain in stood:
        while chain in log.died and chain not in sizes and log.stood[chain] > log.covered:
            before = log.before[chain]
            first = max(log.covered, log.stood[before])
            sizes[chain] = log.stood[chain] - first
            chain = before
    return sum(sorted(sizes.values())[:COUNTED])

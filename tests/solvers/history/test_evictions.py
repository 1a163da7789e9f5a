"""Which keys a table of a history keeps: against a table in plain Python."""

import numpy as np

from dualstream.solvers.history.columns import HistoryColumns
from dualstream.solvers.history.spec import SET, slots_of
from tests.solvers.history.support import NAN, batch_of, group, inputs_of_width, key_number

BITS, U64 = 10, 2**64
KEYS = 1000


class Table:
    """Two candidate sets for each key; the least recently used of their slots gives way."""

    def __init__(self) -> None:
        self.sets = slots_of(KEYS) // SET
        self.keys, self.rows = (
            [[0] * SET for _ in range(self.sets)],
            [[0] * SET for _ in range(self.sets)],
        )
        self.evicted = 0

    def candidates(self, key: int) -> list[int]:
        both = key, key * 0xD6E8FEB86659FD93 % U64
        return [(mixed >> 32) * self.sets >> 32 for mixed in both]

    def enter(self, number: float, row: int) -> None:
        key = int(number) * 0x9E3779B97F4A7C15 % U64
        key ^= key >> 32
        sets = self.candidates(key)
        for one in sets:
            if key in self.keys[one]:
                self.rows[one][self.keys[one].index(key)] = row
                return
        empty = [self.keys[one].count(0) for one in sets]
        oldest = [min(self.rows[one]) for one in sets]
        takes_second = empty[1] > empty[0] or (not any(empty) and oldest[1] < oldest[0])
        one = sets[takes_second]
        slot = self.rows[one].index(min(self.rows[one]))
        self.evicted += self.keys[one][slot] != 0
        self.keys[one][slot], self.rows[one][slot] = key, row


def stage_of_cards() -> HistoryColumns:
    groups = [group("card", ("count", "label_mean"), of=None, keys=KEYS)]
    return HistoryColumns(groups, inputs_of_width(BITS), BITS, "binary")


def cells_of(keys) -> list[tuple[dict, dict]]:
    return [({}, {"card": key_number(int(key)), "at": 1.7e9 + n}) for n, key in enumerate(keys)]


def test_the_least_recently_used_of_two_sets_gives_way():
    rng, n = np.random.default_rng(1), 20_000
    rows, kinds = cells_of(rng.zipf(1.1, n) % 50_000), rng.choice(4, n, p=[0.5, 0.3, 0.1, 0.1])
    learned, observed, late = kinds == 0, kinds == 1, kinds == 2
    labels = np.where(observed, NAN, 1.0)
    weights = np.where(learned | late, 1.0, 0.0)  # a row of weight 0 with a label is only read
    stage, table = stage_of_cards(), Table()
    stage.learn(batch_of(rows, labels, weights, np.where(late, 0.5, NAN), BITS))
    entered = (row for row, enters in zip(rows, learned | observed, strict=True) if enters)
    for at, (_, cells) in enumerate(entered, 1):
        table.enter(cells["card"], at)
    state = stage.state()["table"]
    assert (state[::2].astype(np.uint64).tolist(), state[1::2].tolist()) == (table.keys, table.rows)
    assert stage.counts[0]["evicted"] == table.evicted > 1000
    assert stage.counts[0]["lost_labels"] > 100


def test_a_table_keeps_as_many_keys_as_it_is_for():
    stage = stage_of_cards()
    ones = np.ones(KEYS)
    stage.learn(batch_of(cells_of(range(KEYS)), ones, ones, np.full(KEYS, NAN), BITS))
    assert stage.counts[0]["evicted"] == 0 and stage.counts[0]["keys"] == KEYS

"""Tables whose types are known, and files of the demo and the examples, for infer."""

import random
from datetime import UTC, datetime, timedelta
from itertools import islice

from dualstream.service.cli.demo.adult import adult_samples
from dualstream.solvers.rows.columns.tables import plain_row
from examples import clicks, house_power
from load_tests.messages import made

START = datetime(2024, 1, 1, tzinfo=UTC)
WORDS = 'free money now call me today hello world, this is; a "mail" über деньги 東京'.split()


def column(kind, rng, n):
    """Values of a column, and the types that are right for it."""
    unique = rng.sample(range(10**6), n)
    made = {
        "number": lambda i: round(rng.uniform(-1e3, 1e3), 3),
        "count": lambda i: rng.randrange(500),
        "boolean": lambda i: rng.choice([True, False]),
        "switch": lambda i: rng.choice([0, 1]),
        "time": lambda i: (START + timedelta(minutes=rng.randrange(10**6))).isoformat(),
        "epoch_ts": lambda i: 1_700_000_000 + rng.randrange(10**7),
        "text": lambda i: " ".join(rng.choices(WORDS, k=rng.randrange(8, 12))),
        "category": lambda i: rng.choice(["a", "b,c", "caf\u00e9", "-", "d e"]),
        "zip": lambda i: rng.choice(["02134", "10115", "00501"]),
        "branch_id": lambda i: rng.choice([7, 11, 13]),
        "constant": lambda i: "same",
        "mail": lambda i: f"u{unique[i]}@example.com",
        "record_no": lambda i: unique[i],
        "long": lambda i: rng.choice("xyz") * 2000,
        "big": lambda i: 2**60 + rng.randrange(3),
    }
    return [made[kind](i) for i in range(n)]


RIGHT = {
    "number": "number", "count": "number", "boolean": "boolean", "switch": "boolean",
    "time": "time", "epoch_ts": "time", "text": "text", "category": "category",
    "zip": "category", "branch_id": "category", "constant": "ignore", "mail": "ignore",
    "record_no": "ignore", "long": "text", "big": "category",
}  # fmt: skip
LABELS = {
    "clicked": lambda rng, i: rng.choice([0, 1]),
    "class": lambda rng, i: rng.choice(["no", "yes", "no"]),
    "target": lambda rng, i: rng.gauss(0, 1),
    "y": lambda rng, i: rng.choice(["red", "green", "blue"]),
    "label": lambda rng, i: rng.randrange(4),
}
TASKS = ["binary", "binary", "regression", "multiclass", "multiclass"]


def table(seed, n=150):
    """Columns of all kinds, some with gaps, in a random order; and the label's name."""
    rng = random.Random(seed)
    label = list(LABELS)[seed % len(LABELS)]
    columns = {kind: column(kind, rng, n) for kind in RIGHT}
    columns["event_id"] = [f"e{i}" for i in range(n)]
    for kind in rng.sample(sorted(set(RIGHT) - {"constant"}), 6):
        columns[kind] = [None if rng.random() < 0.2 else one for one in columns[kind]]
    columns[label] = [LABELS[label](rng, i) for i in range(n)]
    names = list(columns)
    rng.shuffle(names)
    return {name: columns[name] for name in names}, label


def rows_of(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def flat(samples):
    return [dict(x) | {"y": y} for x, y in samples]


def adult():
    return [{**one["x"], "y": one["y"]} for one in islice(adult_samples(), 500)]


FILES = {
    "spam": lambda: flat(made(300, 1)),
    "house_power": lambda: list(map(plain_row, house_power.made(300, 1))),
    "clicks": lambda: list(map(plain_row, clicks.made(300, 1))),
    "adult": adult,
}

"""Small files and runs of comparisons."""

import csv
import random
from pathlib import Path
from typing import Any

from dualstream.service.cli.rows import row_files
from dualstream.service.compare.file_rows import FileRows, proposed, read_rows
from dualstream.service.features.infer.sample import read_sample

COLORS = ("red", "green", "blue")


def samples(count: int, seed: int = 0, task: str = "binary") -> list[dict[str, Any]]:
    """Rows with a number that may be missing, a category, a boolean, a time and a label."""
    rng = random.Random(seed)
    rows = []
    for at in range(count):
        x, color = rng.gauss(0, 1), rng.choice(COLORS)
        member = rng.random() < 0.5
        score = 2 * x + COLORS.index(color) - 1 + member + rng.gauss(0, 0.5)
        labels = {
            "binary": "yes" if score > 0 else "no",
            "multiclass": ("low", "middle", "high")[(score > -1) + (score > 1)],
            "regression": round(score, 4),
        }
        row = {
            "at": f"2024-01-{1 + at // 24 % 28:02d}T{at % 24:02d}:00:00Z",
            "x": "" if rng.random() < 0.05 else round(x, 4),
            "color": color,
            "member": "true" if member else "false",
            "label": labels[task],
        }
        rows.append(row)
    return rows


def written(folder: Path, rows: list[dict[str, Any]], name: str = "rows.csv") -> str:
    """The rows as a CSV file."""
    path = folder / name
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def read(path: str, time: str | None = None, label: str = "label") -> FileRows:
    """The rows of a file, encoded as `infer` proposes."""
    file = row_files([path], None, None)[0]
    sample = read_sample(file, 10_000)
    return read_rows(file, proposed(sample, label, None)[0], sample, time)

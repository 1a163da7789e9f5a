"""The Milan example of the thesis: a server, its refits, and coefficients by name.

    DUALSTREAM_DATA=... python -m load_tests.milan

writes a section of docs/guides/semiparametric.md. It uploads one year of days at a time and waits
for the refit, so results repeat except for the last digit.
"""

import tempfile
import time
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.solvers.jit import Floats
from load_tests.markdown import DOCS, table
from load_tests.regression.data import milan, milan_table
from load_tests.sections import with_section

PLACE = DOCS / "guides/semiparametric.md"
EVERY, LAST = 365, 1000
COLUMNS = ("day.num", "day.of.week", "holiday", "mean.temp", "rel.humid", "SO2", "TSP")
WAIT_S = 60.0


def spec(days: int) -> dict[str, object]:
    year = round(365.25 / (days - 1), 5)
    return {
        "task": "regression",
        "algorithm": "semiparametric",
        "features": {"kind": "indexed", "dim": len(COLUMNS)},
        "basis": [
            "constant",
            {"kind": "linear", "feature": 4, "name": "temp"},
            {"kind": "quadratic", "feature": 4, "name": "temp^2"},
            {"kind": "linear", "feature": 6, "name": "SO2"},
            {"kind": "sine", "feature": 1, "period": year, "name": "sine of the year"},
            {"kind": "cosine", "feature": 1, "period": year, "name": "cosine of the year"},
        ],
        "loss": {"kind": "epsilon_insensitive", "epsilon": 1},
        "gamma": 1,
        "C": 0.1,
        "refit": {"every": EVERY},
    }


def days() -> tuple[Floats, Floats]:
    """Columns (n, 7), each scaled to [0, 1] over the whole table, and deaths (n,)."""
    read = milan_table()
    values = np.array([[float(row[name]) for name in COLUMNS] for row in read])
    low, high = values.min(axis=0), values.max(axis=0)
    return (values - low) / (high - low), np.array([float(row["tot.mort"]) for row in read])


def learned(client: httpx.Client, model: str, x: Sequence[Any], y: Floats) -> Floats:
    """Predictions (n,), each made before its day is learned."""
    scores: list[float] = []
    for first in range(0, len(y), EVERY):
        part = {"x": x[first : first + EVERY], "y": y[first : first + EVERY].tolist()}
        answer = client.post(f"/models/{model}/learn", params={"scores": True}, json=part)
        scores += answer.raise_for_status().json()["scores"]
    return np.array(scores)


def refitted(client: httpx.Client, model: str, x: Sequence[Any], y: Floats) -> Floats:
    """Like `learned`; before each further year the refit of the days so far is applied."""
    predictions = []
    for first in range(0, len(y), EVERY):
        if first:
            await_refit(client, model, first)
        predictions.append(
            learned(client, model, x[first : first + EVERY], y[first : first + EVERY])
        )
    return np.concatenate(predictions)


def await_refit(client: httpx.Client, model: str, due: int) -> None:
    """Wait until the refit is applied. Raises RuntimeError if it is not."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        jobs = client.get(f"/models/{model}/refits").raise_for_status().json()["refits"]
        if any(job["due"] == due and job["status"] == "done" for job in jobs):
            return
        time.sleep(0.02)
    raise RuntimeError(f"the refit due at {due} days was not applied: {jobs[:1]}")


def section() -> list[str]:
    x, y = days()
    with tempfile.TemporaryDirectory(prefix="dualstream-milan-") as folder:
        with ServerProcess(f"sqlite:///{folder}/milan.db") as server:
            with httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
                client.put("/models/milan", json=spec(len(y))).raise_for_status()
                client.put("/models/untuned", json={"task": "regression"}).raise_for_status()
                served = refitted(client, "milan", x.tolist(), y)
                beside = learned(client, "untuned", milan()[0], y)
                got = client.get("/models/milan/weights").raise_for_status().json()
    before = np.arange(len(y))
    sums = np.concatenate([[0.0], np.cumsum(y)[:-1]])
    rows = {
        "semiparametric": served,
        "mean of all days before": sums / np.maximum(1, before),
        "the day before": np.concatenate([[0.0], y[:-1]]),
        '`{"task": "regression"}`, columns by name and unscaled': beside,
    }
    errors = {name: np.abs(predictions - y) for name, predictions in rows.items()}
    lines = [
        [name, f"{predictions.mean():.2f}", f"{predictions[-LAST:].mean():.2f}"]
        for name, predictions in errors.items()
    ]
    value = {one["name"]: one["value"] for one in got["coefficients"]}
    sine, cosine = value["sine of the year"], value["cosine of the year"]
    peak = np.arctan2(sine, cosine) / (2.0 * np.pi) * 365.25
    numbers = ", ".join(f"{name} {number:.1f}" for name, number in value.items())
    wave = np.hypot(sine, cosine)
    when = f"{abs(peak):.0f} days {'after' if peak >= 0.0 else 'before'} the turn of the year"
    return [
        f"""\
{len(y):,} days of Milan (Lee's thesis, section 4.5.2): deaths from day, weekday, holiday, \
temperature, humidity, SO2
and dust, columns scaled to [0, 1]. The spec above learns the days in order on a server, with a \
refit every {EVERY} days. Each
day is scored before it is learned. Written by `DUALSTREAM_DATA=... python -m load_tests.milan`:
""",
        table(["", "mean absolute error", f"of the last {LAST:,} days"], lines),
        f"""\
The first year predicts the mean. The linear portfolio is more accurate, because it learns every \
day; the
semiparametric model gives named effects. After the last refit, over the last {LAST:,} days, in \
deaths over the range of each:
{numbers}.
The season has an amplitude of {wave:.1f} deaths and its peak {when}. Table 4.2 of the thesis, on
held-out days, is in [Papers, reproduced](../internals/papers.md#thesis-table-42-milan).""",
    ]


if __name__ == "__main__":
    lines = section()
    print(*lines, sep="\n")
    PLACE.write_text(with_section(PLACE.read_text(), "Milan", lines))

"""Regression streams, real and generated: rows of names -> values, and targets, in order.

They come from the installed River and scikit-learn, and from the folder that the environment
variable DUALSTREAM_DATA names (those of IN_FOLDER; without it they are left out). A number is a
feature, a text is a category. Streams are not shuffled or scaled unless their name says so.
Features that are known only after the target are left out.
"""

import csv
import lzma
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers import Batch

Value = float | str
Rows = list[dict[str, Value]]
Floats = npt.NDArray[np.float64]
Stream = tuple[Rows, Floats]

IN_FOLDER = ("milan", "elec2_price", "spambase_run", "arrhythmia_age")
"""The streams that need DUALSTREAM_DATA."""

FRIEDMAN_ROWS = 20_000
MADE_ROWS = 10_000


def folder() -> Path | None:
    """The folder of data sets, or None."""
    name = os.environ.get("DUALSTREAM_DATA")
    return Path(name) if name else None


def names() -> list[str]:
    """Streams that can be loaded here."""
    return [name for name in LOADERS if name not in IN_FOLDER or folder() is not None]


def load(name: str) -> Stream:
    """Rows and targets (n,) of a stream."""
    return LOADERS[name]()


def columns_of(rows: Iterable[Mapping[str, Value]]) -> dict[str, int]:
    """name -> column, by first appearance; a text is the name `name=text`."""
    columns: dict[str, int] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(f"{name}={value}" if isinstance(value, str) else name, len(columns))
    return columns


def as_batch(stream: Stream) -> Batch:
    """Rows in the columns of `columns_of`; texts are one-hot."""
    rows, y = stream
    columns = columns_of(rows)
    indptr, indices, values = np.zeros(len(rows) + 1, np.int64), [], []
    for i, row in enumerate(rows):
        entries = sorted(
            (columns[f"{name}={value}"], 1.0)
            if isinstance(value, str)
            else (columns[name], float(value))
            for name, value in row.items()
        )
        indices += [j for j, x in entries if x != 0.0]
        values += [x for _, x in entries if x != 0.0]
        indptr[i + 1] = len(indices)
    return Batch.from_csr(indptr, np.array(indices), np.array(values), y, dim=len(columns))


def named_stream(pairs: Iterable[tuple[Mapping[Any, Any], float]]) -> Stream:
    """Names as texts, numbers as floats."""
    rows: Rows = []
    y = []
    for features, target in pairs:
        rows.append({str(k): v if isinstance(v, str) else float(v) for k, v in features.items()})
        y.append(float(target))
    return rows, np.array(y)


def dense_stream(x: npt.ArrayLike, y: npt.ArrayLike) -> Stream:
    """Rows of x (n, d) with the names x0, x1, ..."""
    matrix, targets = np.asarray(x, np.float64), np.asarray(y, np.float64)
    rows: Rows = [{f"x{j}": value for j, value in enumerate(row)} for row in matrix.tolist()]
    return rows, targets


def permuted(stream: Stream) -> Stream:
    """Rows in the one random order that all permuted streams share."""
    order = np.random.default_rng(0).permutation(len(stream[0]))
    return [stream[0][i] for i in order], stream[1][order]


def path(name: str) -> Path:
    """A file of the folder. Raises FileNotFoundError without a folder."""
    directory = folder()
    if directory is None:
        raise FileNotFoundError("set DUALSTREAM_DATA to the folder of the data sets")
    return directory / name


def milan() -> Stream:
    """Deaths of a day from the weather, the pollution and the calendar of that day.

    The day of the week is a category. Respiratory deaths, a part of the target, are left out.
    """
    kept = ("day.num", "holiday", "mean.temp", "rel.humid", "SO2", "TSP")
    return named_stream(
        (
            {k: float(row[k]) for k in kept} | {"day.of.week": row["day.of.week"]},
            float(row["tot.mort"]),
        )
        for row in milan_table()
    )


def milan_table() -> list[dict[str, str]]:
    """The days of milan.mort.txt, in file order."""
    with path("milan.mort.txt").open() as lines:
        head = next(lines).split()
        return [dict(zip(head, line.split(), strict=True)) for line in lines]


def diabetes() -> Stream:
    """scikit-learn's diabetes in file order, unscaled; the sex is a number, as in the file."""
    from sklearn.datasets import load_diabetes

    return dense_stream(*load_diabetes(return_X_y=True, scaled=False))


def trump() -> Stream:
    """River's TrumpApproval as it is."""
    from river.datasets import TrumpApproval

    return named_stream(TrumpApproval())


def chicks() -> Stream:
    """River's ChickWeights; the chick and the diet are categories."""
    from river.datasets import ChickWeights

    return named_stream(
        ({"time": x["time"], "chick": str(x["chick"]), "diet": str(x["diet"])}, y)
        for x, y in ChickWeights()
    )


def water() -> Stream:
    """River's WaterFlow; the hour and the day of the week are categories."""
    from river.datasets import WaterFlow

    def features(time: datetime) -> dict[str, Value]:
        return {"hour": str(time.hour), "weekday": str(time.weekday())}

    return named_stream((features(x["Time"]), y) for x, y in WaterFlow())


def airline() -> Stream:
    """River's AirlinePassengers; the year is a number, the month a category."""
    from river.datasets import AirlinePassengers

    return named_stream(
        ({"year": x["month"].year, "month": str(x["month"].month)}, y)
        for x, y in AirlinePassengers()
    )


def stocks() -> Stream:
    """River's SP500Stocks: the next day's return from those of ten stocks; almost all noise."""
    from river.datasets import SP500Stocks

    return named_stream(SP500Stocks())


def flares() -> Stream:
    """River's SolarFlare: the C-class flares of a region; most targets are 0."""
    from river.datasets import SolarFlare

    return named_stream((x, y["c-class-flares"]) for x, y in SolarFlare())


def friedman_drift(kind: str) -> Callable[[], Stream]:
    """River's FriedmanDrift: lea drifts at each quarter, gra and gsg at each third."""

    def made() -> Stream:
        from river.datasets.synth import FriedmanDrift

        n = FRIEDMAN_ROWS
        starts = {"lea": (n // 4, n // 2, 3 * n // 4), "gra": (n // 3, 2 * n // 3)}
        position = starts.get(kind, starts["gra"])
        drift = FriedmanDrift(kind, position=position, transition_window=n // 20, seed=1)
        return named_stream(islice(drift, n))

    return made


def mv() -> Stream:
    """River's Mv: numbers and categories, piecewise linear."""
    from river.datasets.synth import Mv

    return named_stream(islice(Mv(seed=1), MADE_ROWS))


def planes() -> Stream:
    """River's Planes2D: ten features of -1, 0, 1 and a switch between two planes."""
    from river.datasets.synth import Planes2D

    return named_stream(islice(Planes2D(seed=1), MADE_ROWS))


def friedman_2() -> Stream:
    """scikit-learn's make_friedman2: features of very unequal scales."""
    from sklearn.datasets import make_friedman2

    return dense_stream(*make_friedman2(MADE_ROWS, noise=100.0, random_state=1))


def friedman_3() -> Stream:
    """scikit-learn's make_friedman3."""
    from sklearn.datasets import make_friedman3

    return dense_stream(*make_friedman3(MADE_ROWS, noise=0.1, random_state=1))


def rescaled() -> Stream:
    """A linear target whose unit is multiplied by 100 after a third, by 1/1000 after two thirds."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(MADE_ROWS, 10)) * np.geomspace(0.01, 100, 10) + 3.0
    w = rng.normal(size=10) / np.geomspace(0.01, 100, 10)
    y = x @ w + rng.normal(size=MADE_ROWS)
    unit = np.repeat([1.0, 100.0, 0.1], [MADE_ROWS // 3, MADE_ROWS // 3, MADE_ROWS - 6666])
    return dense_stream(x, y * unit)


def heavy_tailed() -> Stream:
    """A linear target with noise that has a mean and no variance (Student's t, 1.5 degrees)."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(MADE_ROWS, 10))
    return dense_stream(x, x @ rng.normal(size=10) + rng.standard_t(1.5, MADE_ROWS))


def wandering() -> Stream:
    """A linear target whose coefficients and level walk at random."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(MADE_ROWS, 10))
    w = rng.normal(size=10) + np.cumsum(rng.normal(size=(MADE_ROWS, 10)), axis=0) * 0.02
    level = 1000.0 + np.cumsum(rng.normal(size=MADE_ROWS)) * 0.1
    return dense_stream(x, np.sum(x * w, axis=1) + level + rng.normal(size=MADE_ROWS))


def shops() -> Stream:
    """Categories alone: sales by shop (200), article (300) and weekday, multiplicative noise."""
    rng = np.random.default_rng(4)
    kinds = (200, 300, 7)
    picked = np.stack([(k * rng.random(MADE_ROWS) ** 2).astype(np.int64) for k in kinds], axis=1)
    effects = [rng.normal(size=k) * 0.5 for k in kinds]
    level = sum(effect[picked[:, i]] for i, effect in enumerate(effects))
    y = np.exp(2.0 + level + 0.3 * rng.normal(size=MADE_ROWS))
    rows: Rows = [
        {"shop": str(a), "article": str(b), "weekday": str(c)} for a, b, c in picked.tolist()
    ]
    return rows, y


def elec2_price() -> Stream:
    """The price of the electricity stream from its other features, at the same half-hour."""
    text = lzma.decompress(path("elec2.xz").read_bytes())
    batch = Batch.from_libsvm(text, 6).batch
    x = to_dense(batch)
    return dense_stream(np.delete(x, 1, axis=1), x[:, 1])


def spambase_run() -> Stream:
    """Longest run of capitals in a mail from its word shares, permuted; heavy-tailed."""
    x = to_dense(Batch.from_libsvm(path("spambase").read_bytes(), 57).batch)
    return permuted(dense_stream(x[:, :54], x[:, 55]))


def arrhythmia_age() -> Stream:
    """The age from 278 features of an electrocardiogram; missing values are left out."""
    with path("arrhythmia.csv").open() as lines:
        table = list(csv.reader(lines))
    return named_stream(
        ({f"x{j}": float(v) for j, v in enumerate(row[1:-1]) if v != "?"}, float(row[0]))
        for row in table
    )


def to_dense(batch: Batch) -> Floats:
    """(n, dim)"""
    x = np.zeros((len(batch), batch.dim))
    rows = np.repeat(np.arange(len(batch)), np.diff(batch.indptr))
    x[rows, batch.indices] = batch.values
    return x


LOADERS: Mapping[str, Callable[[], Stream]] = {
    "milan": milan,
    "diabetes": diabetes,
    "diabetes_permuted": lambda: permuted(diabetes()),
    "trump": trump,
    "chicks": chicks,
    "water": water,
    "friedman_lea": friedman_drift("lea"),
    "friedman_gra": friedman_drift("gra"),
    "friedman_gsg": friedman_drift("gsg"),
    "airline": airline,
    "stocks": stocks,
    "flares": flares,
    "mv": mv,
    "planes": planes,
    "friedman_2": friedman_2,
    "friedman_3": friedman_3,
    "rescaled": rescaled,
    "heavy_tailed": heavy_tailed,
    "wandering": wandering,
    "shops": shops,
    "elec2_price": elec2_price,
    "spambase_run": spambase_run,
    "arrhythmia_age": arrhythmia_age,
}

NAMED: Sequence[str] = tuple(LOADERS)[:9]
"""Those that a choice was first made for; the rest are there so that it is not fitted to them."""

"""Table 5.2 and Figures 5.1 and 5.2 of Lee's thesis: safeguards, and cutting planes by parts."""

import gzip
from dataclasses import dataclass

import numpy as np

from dualstream.solvers import Batch, solve
from load_tests.paper_tables import data
from load_tests.paper_tables.report import Section, plt, save, table

TOL = 0.01
PARTS = (1, 2, 4, 8, 16)
RESTS = {"no shrinking": (0, 50), "5 / 50": (5, 50), "2 / 10": (2, 10)}
MNIST_ROWS = 10_000
PATIENCE = 60.0
"""Seconds after which a run is given up."""

ABOUT = f"""\
Lee, "Optimization methods for regularized convex formulations in machine learning" (2011),
section 5.3: hinge loss, a free intercept, ε = {TOL}. MNIST is the first {MNIST_ROWS:,} of 58,100
rows (digits 0-4 against 5-9, pixels in [0, 1]); Reuters (7,770 rows of text) replaces CCAT and
IJCNN (49,990 rows) COVTYPE, with their c/m. "Lazy" is the thesis' safeguard, "always" that of
OCAS. Shrinking a / b sets planes aside that were idle for a iterations and checks all every b.
Cells are iterations and seconds of one run each.
"""


@dataclass(frozen=True)
class Run:
    iterations: int
    seconds: float
    is_done: bool

    def __str__(self) -> str:
        return f"{self.iterations} ({self.seconds:.2f} s{'' if self.is_done else ', given up'})"


def run() -> Section:
    sets = {
        f"MNIST, {MNIST_ROWS:,} rows": (mnist(), 1.0),
        "Reuters": (data.signed(data.libsvm("reuters.trn", 8315), {1.0}), 0.01),
        "IJCNN": (data.signed(data.libsvm("ijcnn1", 22), {1.0}), 3.0),
    }
    body, met, claimed = [ABOUT], 0, 0
    lines, claims = [], []
    for name, (batch, c) in sets.items():
        always, lazy, shrunk = (
            attempt(batch, c, 1, is_lazy, rest)
            for is_lazy, rest in ((False, 0), (True, 0), (True, 5))
        )
        lines.append((name, f"{c:g}", always, lazy, shrunk))
        fewer = lazy.iterations < always.iterations
        claims.append((name, "the lazy safeguard takes fewer iterations than OCAS", fewer))
    head = ("data set", "c/m", "OCAS: always", "lazy, no shrinking", "lazy, shrinking 5 / 50")
    body.append(table(head, lines))
    found_lines, drawn = [], {}
    for name, (batch, c) in sets.items():
        attempts = {
            rest: [attempt(batch, c, parts, True, *RESTS[rest]) for parts in PARTS]
            for rest in RESTS
        }
        drawn[name] = attempts
        found_lines += [(name, rest, *runs) for rest, runs in attempts.items()]
        plain, soon = attempts["no shrinking"], attempts["2 / 10"]
        counts = [r.iterations for r in plain if r.is_done]
        times = [r.seconds for r in plain]
        claims += [
            (name, "more parts, fewer iterations", counts[-1] < counts[0]),
            (name, "time is least with few parts (P ≤ 8)", int(np.argmin(times)) <= 3),
            (
                name,
                f"shrinking 2 / 10 takes less time than none at P = {PARTS[-1]}",
                soon[-1].seconds < plain[-1].seconds,
            ),
        ]
    body.append(table(("data set", "shrinking", *(f"P = {p}" for p in PARTS)), found_lines))
    met, claimed = sum(ok for _, _, ok in claims), len(claims)
    said = [(name, claim, "yes" if ok else "no") for name, claim, ok in claims]
    body.append(table(("data set", "claim", "reproduced"), said))
    body.append(plot(drawn))
    title = "Thesis, Table 5.2, Fig. 5.1 and 5.2: OCAS and MCPA"
    return Section(title, "\n".join(body), f"{met} of {claimed} claims")


def plot(drawn: dict[str, dict[str, list[Run]]]) -> str:
    """Iterations and seconds against P, for each data set and each way of shrinking."""
    figure, axes = plt.subplots(2, len(drawn), figsize=(11, 6), squeeze=False, layout="constrained")
    for column, (name, attempts) in enumerate(drawn.items()):
        for rest, runs in attempts.items():
            axes[0][column].plot(PARTS, [r.iterations for r in runs], "o-", label=rest)
            axes[1][column].plot(PARTS, [r.seconds for r in runs], "o-", label=rest)
        axes[0][column].set(title=name, ylim=(0, None))
        axes[1][column].set(xlabel="parts P", yscale="log")
        for axis in axes[:, column]:
            axis.set_xscale("log", base=2)
    axes[0][0].set_ylabel("iterations")
    axes[1][0].set_ylabel("seconds")
    axes[0][0].legend()
    return save(figure, "thesis_fig_5_1")


def attempt(batch: Batch, c: float, parts: int, lazy: bool, rest: int, recall: int = 50) -> Run:
    result = solve(
        batch,
        "mcpa",
        rho=1.0 / (c * len(batch)),
        tol=TOL,
        intercept="free",
        parts=parts,
        lazy=lazy,
        rest=rest,
        recall=recall,
        callback=lambda got: got.seconds > PATIENCE,
    )
    return Run(int(result.epochs), result.trace[-1].seconds, result.converged)


def mnist() -> Batch:
    """The first rows of MNIST: 1 for the digits 5 to 9, pixels in [0, 1]."""
    with gzip.open(data.folder() / "train-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(16 + 784 * MNIST_ROWS), np.uint8, offset=16)
    with gzip.open(data.folder() / "train-labels-idx1-ubyte.gz") as file:
        digits = np.frombuffer(file.read(8 + MNIST_ROWS), np.uint8, offset=8)
    x = pixels.reshape(-1, 784) / 255.0
    return Batch.from_dense(x, np.where(digits >= 5, 1.0, -1.0))

"""`fit` on a Dask cluster of two processes: rounds and bytes to a certified gap."""

from dask import delayed
from distributed import Client, LocalCluster

from dualstream.solvers import Batch, solve
from dualstream.solvers.offline.dask import fit
from load_tests.markdown import table
from load_tests.measure import Row
from load_tests.offline import data_sets

TITLE = "Dask"
RHO, TOL = 1e-3, 1e-4
LOSSES = ("logistic", "smooth_hinge", "hinge")
PARTITIONS = (1, 2, 4, 8)
HEADS = ("rows", "loss", "partitions", "rounds", "bytes", "gap", "above the optimum")


def rows() -> list[Row]:
    """Nothing: this benchmark has no peer."""
    return []


def about() -> list[str]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        lines = [
            line
            for name, batch in data_sets().items()
            for loss in LOSSES
            for line in measured(name, batch, loss)
        ]
    return [
        f"`dualstream.solvers.offline.dask.fit` to a relative gap of {TOL:g} at rho {RHO:g}, with "
        "a penalised intercept and 5 local epochs a round. Partitions are consecutive rows. Bytes "
        "are those of the vectors that the workers receive and return. The optimum is that of "
        '`solve(method="sdca")` at a gap of 1e-7.',
        "",
        *table(HEADS, lines).splitlines(),
    ]


def measured(name: str, batch: Batch, loss: str) -> list[tuple[str, ...]]:
    options = {"loss": loss, "rho": RHO, "intercept": "penalized"}
    least = solve(batch, tol=1e-7, max_epochs=20_000, **options).primal
    lines = []
    for count in PARTITIONS:
        ends = [len(batch) * part // count for part in range(count + 1)]
        parts = [delayed(batch[a:b]) for a, b in zip(ends, ends[1:], strict=False)]
        result = fit(parts, tol=TOL, **options)
        above = (result.primal - least) / least
        size = f"{result.bytes_exchanged:,}"
        line = (name, loss, f"{count}", f"{result.rounds}", size)
        lines.append((*line, f"{result.relative_gap:.1e}", f"{above:.1e}"))
        print(*lines[-1], flush=True)
    return lines

"""Ingest benchmarks: each row has the peer that users would take instead, in the same run."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from dualstream.service.replica.spec import canonical
from load_tests.ingest.arrow import arrow_rows
from load_tests.ingest.bulk import HINGE, SPECS, libsvm_rows, ndjson_rows
from load_tests.ingest.requests import batch_rows, predict_rows, single_rows
from load_tests.ingest.stages import peer_table, stage_table
from load_tests.measure import FEW_ROUNDS, Row
from load_tests.plots import ratios

TITLE = "Ingest"
GROUPS: Mapping[str, Callable[[], list[Row]]] = {
    "libsvm": libsvm_rows,
    "ndjson": ndjson_rows,
    "arrow": arrow_rows,
    "single": single_rows,
    "batch": batch_rows,
    "predict": predict_rows,
}


def rows(*only: str) -> Iterator[Row]:
    """Rows of the named groups, or of all."""
    for name in only or GROUPS:
        yield from GROUPS[name]()


def draw(rows: Sequence[Row]) -> str:
    """Plot the ratios of all rows."""
    return ratios(rows, "ingest", "Ours to what users would take instead")


def about() -> list[str]:
    features = "; ".join(
        f"{name} `{canonical(spec['features']).decode()}`" for name, spec in SPECS.items()
    )
    spec = canonical(dict(HINGE)).decode()
    return [
        f"`python -m load_tests ingest` runs these alone; `--rows {' '.join(GROUPS)}` selects "
        f"groups. Model `{spec}`, features of {features}; JSON uses those of LIBSVM. In rows "
        "against Vowpal Wabbit no process is pinned: both sides have the whole machine, and the "
        "file is in memory. The time of its command line over an empty file is subtracted. Redis "
        "does not rewrite its append-only file during uploads, because the checker needs the whole "
        "journal. In the other rows servers are on core 0, sender and Redis on core 1. After each "
        "run of ours the journal is read: each answered row is in it once and in the state, and "
        "the mean loss of an upload is below that of a constant. Otherwise the row is void.",
        "",
        "Profile of the server, by its own functions called one after the other, us of CPU a row, "
        f"the minimum of {FEW_ROUNDS} rounds. The event loop receives, splits bodies into chunks "
        "and answers; a thread reads and encodes a chunk of a long body while the chunk before it "
        "is appended and learned. The rest of the CPU above is hand-over between threads, and "
        "snapshots. Concurrent requests share an append and a call of the learner:",
        "",
        *stage_table(),
        "",
        "A row of Arrow against a row of the peer. The peer's loss is the hinge, too, and it "
        "sees each row once. Longer bodies would speed it up little, shorter ones would slow it "
        "down. Both sides receive, parse and turn columns into rows. Durability adds the record "
        "and its way into the store, about 800 bytes a row. For Redis only the kernel copies "
        "them, on the server's core. SQLite copies them into pages, computes checksums and "
        "writes them twice, into the WAL and out of it, all on the server's core. Steps that "
        "run one after the other find their data and code in the CPU cache; overlapping chunks "
        "do not, on both sides. According to `perf`, Python itself takes a sixth of the "
        "server's CPU with SQLite, between the steps. Each round reuses the pages of the model "
        "before it: for each page SQLite searches the nearest of up to a thousand free ones, "
        "which costs 0.4 us a row more than a growing file:",
        "",
        *peer_table(),
    ]

"""Ingest against what users would take instead, each row with its peer in one run."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from dualstream.service.models.registry import canonical
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
    """Of the groups named, or of all."""
    for name in only or GROUPS:
        yield from GROUPS[name]()


def draw(found: Sequence[Row]) -> str:
    """The ratios of all rows."""
    return ratios(found, "ingest", "Ours to what users would take instead")


def about() -> list[str]:
    features = "; ".join(
        f"{name} `{canonical(spec['features']).decode()}`" for name, spec in SPECS.items()
    )
    spec = canonical(dict(HINGE)).decode()
    return [
        f"`python -m load_tests ingest` runs these alone, `--rows {' '.join(GROUPS)}` some of "
        f"them. Model `{spec}`, features of {features}; JSON as LIBSVM. Rows against Vowpal Wabbit "
        "pin nothing: both sides have the whole machine, which holds the file in memory, and the "
        "time of its command line over an empty file is taken off. Of uploads Redis does not "
        "rewrite its file meanwhile, as it would dump the journal that is kept whole for the "
        "checker. Of the others the servers are "
        "on core 0, sender and Redis on core 1. After each run of ours the journal is read: what "
        "was answered stands in it once and is in the state; of uploads the mean loss is below "
        "that of a constant; or the row is void.",
        "",
        "Where the server's time goes, by its own functions called one after the other, us of CPU "
        f"a row, the least of {FEW_ROUNDS} rounds. What is received and cut, and what is answered, "
        "is the event loop's; the chunks of a long body are read and encoded in a thread while "
        "the chunk before them is appended and learned. The rest of the CPU above is handing over "
        "from one to the other, and snapshots; requests that come together share an append, and a "
        "call of the learner:",
        "",
        *stage_table(),
        "",
        "A row of Arrow beside the peer, whose loss is the hinge, too, and who sees each row once. "
        "Longer bodies than those that it is sent here would make it little faster, if at all, and "
        "shorter ones slower. Both sides receive, read and turn the columns into rows; what "
        "durability adds is the record and its way into the store, about 800 bytes a row. To "
        "Redis they are copied "
        "by the kernel alone, on the server's core; SQLite copies them into pages, sums those up "
        "and writes them twice, into its log and out of it, all on the server's core. Steps run "
        "one after the other find their bytes and their code in the cache; those of chunks that "
        "overlap do not, on both sides. By `perf` a sixth of the server's CPU into SQLite is "
        "Python's own, between the steps. Each round learns into pages that the model before it "
        "has left: for each one that it takes SQLite looks for the nearest of up to a thousand "
        "free ones, which costs 0.4 us a row more than a file that grows:",
        "",
        *peer_table(),
    ]

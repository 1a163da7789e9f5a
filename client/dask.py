"""`learn_partitions`: learn a Dask data set, in order and exactly once.

A data set is a Dask DataFrame, or a list of delayed partitions. The workers need
`pip install 'dualstream[dask]'`, as the client does.

All rows of a model are one source of the server. A row's offset is its number among the model's
rows in the whole data set, so the server refuses a batch out of order, and knows what it has
learned: a task that runs twice, a killed worker and a second call learn nothing twice. The call
sends one partition after the other. The next one is loaded while a partition is learned. With `by`
each model belongs to one of as many lanes as the cluster has threads, and the lanes of a partition
are learned at the same time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from distributed import Client as Cluster

from dualstream.client.arrow_tables import pyarrow_for
from dualstream.client.clients import URL, Client
from dualstream.client.errors import BadInput, Refused
from dualstream.client.rows import has_stream
from dualstream.wire.changes import SourceCursor
from dualstream.wire.dask import cluster_of, partitions_of
from dualstream.wire.plural import plural
from dualstream.wire.schemas import MODEL_ID, MODEL_ID_RULE


class Backfill(NamedTuple):
    """What a model has learned of a data set."""

    learned: int
    """Good rows of the source, in all runs; also those skipped by their known ids."""
    refused: int
    """Bad rows of the source, in all runs; their reasons are in the server's answers alone."""
    duplicates: int
    """Rows not sent, because an earlier run, or an earlier attempt of a task, had sent them."""


class _Server(NamedTuple):
    """Where, and as which source, the workers learn."""

    url: str
    api_key: str | None
    source: str
    spec: Mapping[str, Any] | None

    def client(self) -> Client:
        return Client(self.url, api_key=self.api_key)

    def cursor(self, client: Client, model: str) -> SourceCursor | None:
        """The cursor of the source; None before its first row. Creates the model if it may."""
        try:
            cursors = client.sources(model)
        except Refused as refused:
            if refused.kind != "unknown-model" or self.spec is None:
                raise
            client.create(model, self.spec)
            cursors = []
        return next((one for one in cursors if one.name == self.source), None)


def learn_partitions(
    data: Any,
    *,
    source: str,
    model: str | None = None,
    by: str | None = None,
    url: str = URL,
    api_key: str | None = None,
    spec: Mapping[str, Any] | None = None,
    client: Cluster | None = None,
) -> dict[str, Backfill]:
    """Learn the rows of a data set in its order, by one model or by many.

    data      a Dask DataFrame, or delayed partitions: pandas DataFrames, or tables with the Arrow
              C stream interface; the same rows in the same order whenever they are computed
    source    name of the data set; repeat the call with this name to resume
    model     the model that learns, or
    by        the column with the id of each row's model, which is no feature
    url       of the server, as the workers reach it
    api_key   by default the variable DUALSTREAM_API_KEY of each worker
    spec      creates models that do not exist
    client    of the Dask cluster; by default the one that was made last

    Labels, weights and ids are columns, as in `Client.learn` of a table. Returns the counts of each
    model. Raises BadInput, Refused and Unreachable; then repeat the call. `source-moved` means that
    another run sends to the source, or that the server's store has lost rows; `unknown-source` that
    it has lost all rows of the source.
    """
    if (model is None) == (by is None):
        raise BadInput("give either a model, or as `by` the column that has the id of the model")
    try:
        cluster, parts = cluster_of(client), partitions_of(data)
    except ValueError as wrong:
        raise BadInput(str(wrong)) from None
    server = _Server(url, api_key, source, spec)
    lanes = 1 if by is None else max(1, sum(cluster.nthreads().values()))
    sent: Sequence[Counter[str]] = [Counter() for _ in range(lanes)]
    duplicates: Counter[str] = Counter()
    part = cluster.compute(parts[0])
    for number in range(len(parts)):
        tasks = [
            cluster.submit(
                _learn, part, number, server, model, by, lane, lanes, dict(sent[lane]), pure=False
            )
            for lane in range(lanes)
        ]
        # The tasks keep their partition. The next one is loaded after they have begun.
        part = cluster.compute(parts[number + 1], priority=-1) if number + 1 < len(parts) else None
        for rows, learned in zip(sent, cluster.gather(tasks), strict=True):
            for name, (count, repeated) in learned.items():
                rows[name] += count
                duplicates[name] += repeated
    names = sorted(name for rows in sent for name in rows)
    counts = cluster.submit(_counts, server, names, pure=False).result()
    return {
        name: Backfill(learned, refused, duplicates[name])
        for name, (learned, refused) in counts.items()
    }


def _learn(
    part: Any,
    number: int,
    server: _Server,
    model: str | None,
    by: str | None,
    lane: int,
    lanes: int,
    sent: Mapping[str, int],
) -> dict[str, tuple[int, int]]:
    """Learn the rows of a lane; returns each model's rows, and how many were duplicates.

    sent   of each model the rows of earlier partitions
    """
    counts = {}
    try:
        table = _table(part)
        if not table.num_rows:  # its columns may have no types
            return {}
        groups = [(str(model), table)] if by is None else _groups(table, by, lane, lanes)
        with server.client() as client:
            for name, rows in groups:
                repeated = _learn_rows(client, server, name, rows, sent.get(name, 0))
                counts[name] = (rows.num_rows, repeated)
    except BadInput as wrong:
        raise BadInput(f"partition {number}: {wrong}") from wrong
    return counts


def _learn_rows(client: Client, server: _Server, model: str, rows: Any, offset: int) -> int:
    """Learn rows of which the first has this offset; returns how many were duplicates."""
    cursor = server.cursor(client, model)
    following = 0 if cursor is None else cursor.next
    if not isinstance(following, int):
        raise BadInput(f"the source {server.source!r} of model {model!r} has texts as offsets")
    repeated: int = min(max(following - offset, 0), rows.num_rows)
    if repeated < rows.num_rows:
        begin = offset + repeated
        client.learn(model, rows.slice(repeated), source=server.source, offset=begin)
    return repeated


def _counts(server: _Server, models: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Of each model the good and the bad rows of the source."""
    with server.client() as client:
        cursors = {model: server.cursor(client, model) for model in models}
    return {
        model: (0, 0) if cursor is None else (cursor.rows, cursor.refused)
        for model, cursor in cursors.items()
    }


def _table(part: Any) -> Any:
    """A partition as a pyarrow Table, without the index of pandas."""
    pa = pyarrow_for("a partition")
    if hasattr(part, "iloc"):
        return pa.Table.from_pandas(part, preserve_index=False)
    if has_stream(part):
        return pa.table(part)
    raise BadInput(f"it must be a pandas DataFrame or an Arrow table, got {part!r:.60}")


def _groups(table: Any, by: str, lane: int, lanes: int) -> Iterator[tuple[str, Any]]:
    """The rows of each model of a lane, in their order, without the column `by`."""
    import numpy as np
    import pyarrow as pa

    if by not in table.column_names:
        raise BadInput(
            f"there is no column {by!r}; the columns are {', '.join(table.column_names)}"
        )
    column = table.column(by)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ):
        raise BadInput(f"ids of models are texts or whole numbers; the column {by!r} has {kind}")
    if column.null_count:
        raise BadInput(f"{plural(column.null_count, 'row')} without {by!r}, which names the model")
    coded = column.cast(pa.large_string()).combine_chunks().dictionary_encode()
    codes, names = np.asarray(coded.indices), coded.dictionary.to_pylist()
    if (wrong := next((one for one in names if not MODEL_ID.fullmatch(one)), None)) is not None:
        raise BadInput(f"{MODEL_ID_RULE}; the column {by!r} has {wrong!r:.150}")
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    table = table.drop_columns([by])
    for code, name in enumerate(names):
        if crc32(name.encode()) % lanes == lane:
            yield name, table.take(order[ends[code - 1] if code else 0 : ends[code]])

"""Partitions of a Dask data set, and the cluster that works on them."""

from collections.abc import Sequence
from typing import Any

from distributed import Client, default_client


def partitions_of(data: Any) -> list[Any]:
    """The partitions of a Dask DataFrame, or of a list of delayed ones. Raises ValueError."""
    if hasattr(data, "divisions"):
        # Of one graph: `data.partitions[n]` would shuffle all data for each of them.
        return list(data.to_delayed())
    parts = list(data) if isinstance(data, Sequence) else []
    if not parts or not all(hasattr(part, "__dask_graph__") for part in parts):
        raise ValueError(
            f"the data must be a Dask DataFrame or a list of delayed partitions, got {data!r:.60};"
            " dask.dataframe.from_pandas makes one of a pandas DataFrame"
        )
    return parts


def cluster_of(client: Client | None) -> Client:
    """This client of a cluster, or the one that was made last. Raises ValueError."""
    try:
        return client or default_client()
    except ValueError:
        raise ValueError("there is no Dask cluster: call dask.distributed.Client() first") from None

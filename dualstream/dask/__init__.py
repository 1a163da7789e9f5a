"""Dask: learn a data set by many workers, and the optimum of one that no machine holds.

learn.py   learn_partitions: the partitions of a data set -> the models of a server
cocoa.py   fit: the best linear model for all partitions, with a certificate
shared.py  the partitions of a data set, and the cluster

A data set is a Dask DataFrame, or a list of delayed partitions. The workers need
`pip install 'dualstream[dask]'`; those of `fit` also `dualstream[server]`.
"""

from typing import TYPE_CHECKING, Any

from dualstream.dask.learn import Backfill, learn_partitions

if TYPE_CHECKING:
    from dualstream.dask.cocoa import Fit, fit

__all__ = ["Backfill", "Fit", "fit", "learn_partitions"]


def __getattr__(name: str) -> Any:
    """Import `fit` on first use: it needs the learners, and `learn_partitions` does not."""
    if name not in ("Fit", "fit"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dualstream.dask import cocoa

    return getattr(cocoa, name)

"""Python client of the server: `Client`, and `AsyncClient` with the same methods to await.

clients.py          Client and AsyncClient: perform the actions that a method yields
learn.py            methods that learn and observe, of both clients, each written once
send_rows.py        their requests: samples, tables, files, batches of a source
predict.py          methods that score rows
manage.py           methods that manage models
method.py           what these methods have in common
calls.py            one request: path, headers, response, retries
rows.py             rows of any type -> NDJSON bodies
row_values.py       their values -> JSON
arrow_tables.py     tables with the Arrow C stream interface, Parquet -> Arrow bodies
resumable_files.py  files of rows -> chunks with idempotency keys or offsets
stores.py           files of object stores, web servers and folders
partitions.py       folders such as day=2024-05-01 -> columns
responses.py        types of some responses; the others are in wire/
progress_bar.py     progress of a learn, and its bar in the terminal
errors.py           exceptions

Needs httpx and msgspec; rich for a progress bar, zstandard for .zst files, pyarrow for tables and
Parquet.
"""

from dualstream.client.clients import AsyncClient, Client
from dualstream.client.errors import BadInput, ClientError, NoRows, Refused, Unreachable
from dualstream.client.progress_bar import Progress
from dualstream.client.responses import Event, Timeline
from dualstream.client.resumable_files import FORMATS, RowFile, kind_of
from dualstream.wire.changes import (
    Change,
    Resumed,
    RolledBack,
    SourceCursor,
    Unlearned,
    Version,
    Versions,
)
from dualstream.wire.responses import (
    Bin,
    Certificate,
    Column,
    Columns,
    Comparison,
    Confusion,
    Curves,
    FrequentValue,
    IntervalRows,
    Member,
    Members,
    Model,
    Segment,
    SegmentMetrics,
    Series,
    Support,
    Trends,
    Weights,
)
from dualstream.wire.schemas import Learned, LearnedStream, Predicted, PredictedMany
from dualstream.wire.sources import Source

__all__ = [
    "AsyncClient",
    "BadInput",
    "Bin",
    "NoRows",
    "Certificate",
    "Change",
    "Client",
    "ClientError",
    "Column",
    "Columns",
    "Comparison",
    "Confusion",
    "Curves",
    "Event",
    "FORMATS",
    "FrequentValue",
    "IntervalRows",
    "Learned",
    "LearnedStream",
    "Member",
    "Members",
    "Model",
    "Predicted",
    "PredictedMany",
    "Progress",
    "Refused",
    "Resumed",
    "RolledBack",
    "RowFile",
    "Segment",
    "SegmentMetrics",
    "Series",
    "Source",
    "SourceCursor",
    "Support",
    "Timeline",
    "Trends",
    "Unlearned",
    "Unreachable",
    "Version",
    "Versions",
    "Weights",
    "kind_of",
]

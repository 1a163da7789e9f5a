"""A typed client: `Client`, and `AsyncClient` with the same methods to await.

errors.py            what can go wrong
answers.py           answers as the API gives them
calls.py routes.py   a call, and every route as one
retries.py           how long a call is made again
rows.py bodies.py    what a caller has at hand -> samples -> bodies
files.py             files of rows, cut into chunks under keys; ahead.py: read ahead in a thread
steps.py             what takes several calls
events.py            server-sent events
progress.py          a bar in the terminal
sync.py              Client; asynchronous.py: AsyncClient

It imports no kernel of the learners, and starts in a moment.
"""

from service.client.answers import (
    Certificate,
    Change,
    Comparison,
    Event,
    Learned,
    LearnedStream,
    Member,
    Members,
    Model,
    Predicted,
    PredictedMany,
    Resumed,
    RolledBack,
    Support,
    Timeline,
    Unlearned,
    Version,
    Versions,
    Weights,
)
from service.client.asynchronous import AsyncClient
from service.client.errors import BadInput, ClientError, Refused, Unreachable
from service.client.files import FORMATS, RowFile, kind_of
from service.client.steps import Progress
from service.client.sync import Client

__all__ = [
    "AsyncClient",
    "BadInput",
    "Certificate",
    "Change",
    "Client",
    "ClientError",
    "Comparison",
    "Event",
    "FORMATS",
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
    "Support",
    "Timeline",
    "Unlearned",
    "Unreachable",
    "Version",
    "Versions",
    "Weights",
    "kind_of",
]

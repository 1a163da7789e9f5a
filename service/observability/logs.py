"""Log lines of the server: one handler on standard error, for people or as JSON.

A line has time (UTC), level, logger and message; the id of the request that it was written for, and
of the request's trace if it is recorded; the model that its message begins with (`model %r: `); the
worker process, if there are several; and further fields that the call passes in `extra`.
"""

import json
import logging
import sys
import time
import traceback
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from dualstream.service.observability.tracing import SPAN
from dualstream.wire.printable import printable, printable_json, printable_lines

Format = Literal["console", "json"]
Level = Literal["debug", "info", "warning", "error"]

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Id of the request that runs; None in background work."""
_OF_MODEL = "model %r: "
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = (str, int, float, bool, type(None), list, dict)


def configure(level: Level, format: Format) -> None:
    """Send the lines of all loggers, of libraries too, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else ConsoleFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(True)
    # httpx, redis and asyncio log each request and each slow callback below warnings.
    for name in ("httpx", "httpcore", "asyncio", "numba"):
        logging.getLogger(name).setLevel(logging.WARNING)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record, without its message and without None."""
    seconds, fraction = time.gmtime(record.created), int(record.msecs)
    span = SPAN.get()
    fields: dict[str, Any] = {
        "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', seconds)}.{fraction:03}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "request_id": REQUEST_ID.get(),
        "trace_id": None if span is None else span.trace_id,
        "model": _model_of(record),
        "worker": _worker_of(record),
    }
    fields |= {name: value for name, value in vars(record).items() if name not in _OWN}
    return {
        name: value if isinstance(value, _PLAIN) else str(value)
        for name, value in fields.items()
        if value is not None
    }


def _model_of(record: logging.LogRecord) -> str | None:
    is_named = isinstance(record.msg, str) and record.msg.startswith(_OF_MODEL)
    return str(record.args[0]) if is_named and isinstance(record.args, tuple) else None


def _worker_of(record: logging.LogRecord) -> str | None:
    name = record.processName or ""
    return name if name.startswith("worker-") else None


def _trace_of(record: logging.LogRecord) -> str | None:
    if not record.exc_info or record.exc_info[0] is None:
        return None
    return printable_lines("".join(traceback.format_exception(*record.exc_info)).rstrip())


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a traceback is its field `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        fields["message"] = record.getMessage().encode("utf-8", "backslashreplace").decode()
        trace = _trace_of(record)
        if trace is not None:
            fields["exception"] = trace
        return printable_json(msgspec.json.encode(fields, enc_hook=str).decode())


class ConsoleFormatter(logging.Formatter):
    """Time, level, logger, message and the other fields as `name=value`; then a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        at, level, logger = (fields.pop(name) for name in ("time", "level", "logger"))
        if _model_of(record) is not None:  # the message names it
            del fields["model"]
        logger = logger.removeprefix("dualstream.")
        others = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        line = f"{at} {level.upper():7} {logger}: {printable(record.getMessage())}{others}"
        trace = _trace_of(record)
        return line if trace is None else f"{line}\n{trace}"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        value = ",".join(f"{name}={one}" for name, one in value.items())
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    is_plain = text and text.isprintable() and not any(char in ' "=' for char in text)
    return text if is_plain else json.dumps(text)

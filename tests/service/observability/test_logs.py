"""Log lines: their fields, for people and as JSON."""

import json
import logging
import re
import sys

import msgspec
import pytest

from dualstream.service.observability.logs import REQUEST_ID, ConsoleFormatter, JsonFormatter


def line(
    formatter: logging.Formatter, message: str, *args: object, level: int = 30, **options: object
) -> str:
    record = logging.getLogger("dualstream.model").makeRecord(
        "dualstream.model", level, __file__, 1, message, args, None, extra=options
    )
    record.created, record.msecs = 1_700_000_000.042, 42.0
    return formatter.format(record)


def test_json_line_has_time_level_logger_request_and_model():
    token = REQUEST_ID.set("r-1")
    try:
        got = json.loads(line(JsonFormatter(), "model %r: lost %d", "clicks", 3, rows=7))
    finally:
        REQUEST_ID.reset(token)
    assert got == {
        "time": "2023-11-14T22:13:20.042Z",
        "level": "warning",
        "logger": "dualstream.model",
        "request_id": "r-1",
        "model": "clicks",
        "rows": 7,
        "message": "model 'clicks': lost 3",
    }


def test_console_line_reads_and_names_the_model_once():
    got = line(ConsoleFormatter(), "model %r: lost %d", "clicks", 3, rows=7, why="no disk", none="")
    assert got == (
        "2023-11-14T22:13:20.042Z WARNING model: model 'clicks': lost 3 rows=7 why=\"no disk\""
        ' none=""'
    )


@pytest.mark.parametrize("hostile", ["a\nERROR forged", "a\r\x1b[2Jb", 'a" b=c', "a\u2028b", "\0"])
def test_input_cannot_forge_a_line(hostile: str):
    for formatter in (ConsoleFormatter(), JsonFormatter()):
        got = line(formatter, "got %s", hostile, path=hostile)
        assert re.fullmatch(r"[^\x00-\x1f]+", got)
    assert json.loads(got)["path"] == hostile
    assert "\u2028" not in line(ConsoleFormatter(), "got %s", hostile, path=hostile)


def test_exception_is_a_field_of_json_and_follows_a_line():
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        record = logging.LogRecord("x", 40, __file__, 1, "failed", (), sys.exc_info())
    got = json.loads(JsonFormatter().format(record))
    assert got["message"] == "failed" and "ValueError: bad\nvalue" in got["exception"]
    first, *others = ConsoleFormatter().format(record).splitlines()
    assert first.endswith("ERROR   x: failed") and others[0].startswith("Traceback")


def test_value_of_any_type_is_logged():
    got = json.loads(
        line(JsonFormatter(), "x", at=object(), many=[1, {2}], of={"a": msgspec.UNSET})
    )
    assert got["at"].startswith("<object") and got["many"][0] == 1

"""Command `consume`: learn the messages of a Kafka topic, a Redis stream or a NATS stream."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from dualstream.client import BadInput, Client
from dualstream.service.cli.common import (
    JSON,
    SOME_REFUSED,
    URL,
    WRONG,
    ApiKey,
    Url,
    app,
    connected,
    fail,
    known_models,
    print_json,
    say,
    say_error,
)
from dualstream.service.cli.consume.counters import Counters
from dualstream.service.cli.consume.dead_letters import DeadLetters, FileLetters, LoggedLetters
from dualstream.service.cli.consume.entries import EntryLines, check_columns
from dualstream.service.cli.consume.loop import EARLIEST, LATEST, Consumer
from dualstream.service.cli.consume.metrics import MetricsServer, exposition, now_ms
from dualstream.service.cli.consume.reader import ReaderError, without_user
from dualstream.service.cli.consume.rows import RowLines, parse_columns
from dualstream.service.cli.consume.server import EntryServer, ModelServer

MAX_BATCH_BYTES = 1024 * 1024
"""Bytes of the rows of a batch; a longer row is a batch of its own."""
SCHEME = "kafka://"


class Topic(NamedTuple):
    """Address of a topic: `kafka://HOST:PORT,HOST:PORT/TOPIC`."""

    brokers: str
    name: str


class Asked(NamedTuple):
    """Options of the command that say what is read."""

    source: str
    dead_letter: str | None
    group: str | None
    kafka: Sequence[str]
    columns: Mapping[str, str]
    model: str


class Opened(NamedTuple):
    """What a scheme provides for the loop."""

    reader: Any
    server: ModelServer
    lines: RowLines
    dead: DeadLetters


@app.command()
def consume(
    source: Annotated[
        str,
        typer.Argument(
            help="kafka://HOST:PORT/TOPIC, redis://HOST:PORT/DB/STREAM or nats://HOST:PORT/STREAM",
            metavar="SOURCE",
        ),
    ],
    model: Annotated[
        str, typer.Option(help="Id of the model that learns.", autocompletion=known_models)
    ],
    group: Annotated[
        str | None,
        typer.Option(help="Kafka group that shares the partitions; default: dualstream-MODEL."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=COLUMN",
            help="Add a field of the message to the row: key, timestamp, offset or headers.NAME (of"
            " Redis timestamp or offset; the key of NATS is the subject); repeatable.",
        ),
    ] = None,
    kafka: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Setting of librdkafka, such as security.protocol=SSL, or @FILE with one on each"
            " line; repeatable.",
        ),
    ] = None,
    dead_letter: Annotated[
        str | None,
        typer.Option(
            metavar="SINK",
            help="Refused messages: a file, or a topic or stream like SOURCE; default: the log.",
        ),
    ] = None,
    reset: Annotated[
        str | None,
        typer.Option(
            help="earliest or latest: where to continue if the model's cursor is not in the log."
            " latest also skips what is in the log before the first start."
        ),
    ] = None,
    batch_rows: Annotated[int, typer.Option(min=1, help="Maximum rows of a batch.")] = 1000,
    batch_wait: Annotated[
        float, typer.Option(min=0.0, help="Maximum seconds that a row waits for a full batch.")
    ] = 0.2,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Exit at the end of the partitions.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve /metrics on this port.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Address that /metrics is served on.")
    ] = "127.0.0.1",
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: JSON = False,
) -> None:
    """Learn the messages of a topic or a stream, each once, until SIGTERM or Ctrl-C.

    Reads each partition from the model's cursor, which moves in the step that journals the rows.
    Any number of processes share the partitions of a topic; one reads a stream. Waits while the
    server is away. Needs `pip install 'dualstream[kafka]'`, `'dualstream[redis]'` or
    `'dualstream[nats]'`. Passwords are in the URL, or in REDISCLI_AUTH, NATS_USER, NATS_PASSWORD.

    Examples:

        dualstream consume kafka://localhost:9092/clicks --model clicks
        dualstream consume redis://localhost:6379/0/clicks --model clicks
        dualstream consume nats://localhost:4222/CLICKS --model clicks
        dualstream consume kafka://localhost:9092/clicks --model clicks --dead-letter bad.ndjson
    """
    counters = Counters()
    with ExitStack() as stack:
        client = stack.enter_context(connected(url, api_key, 0.0, as_json))
        stack.enter_context(_reader_errors())
        if reset not in (None, EARLIEST, LATEST):
            raise BadInput(f"--reset must be {EARLIEST} or {LATEST}, got {reset!r}")
        if dead_letter == source:
            raise BadInput("--dead-letter must not be the source itself")
        asked = Asked(source, dead_letter, group, kafka or (), parse_columns(column or ()), model)
        found = _opener(source)(asked, client)
        stack.enter_context(closing(found.reader))
        if metrics_port is not None:
            served = MetricsServer(
                lambda: exposition(counters, model, now_ms()), metrics_host, metrics_port
            )
            stack.enter_context(closing(served))
            say_error(f"metrics: http://{metrics_host}:{served.port}/metrics")
        consumer = Consumer(
            found.reader,
            found.server,
            found.lines,
            found.dead,
            max_rows=batch_rows,
            max_bytes=MAX_BATCH_BYTES,
            max_wait_s=batch_wait,
            reset=reset,
            counters=counters,
            log=say_error,
        )
        with _stopped_by_signals(consumer.stop):
            consumer.run(until_end=until_end)
    if as_json:
        print_json(msgspec.to_builtins(counters))
    else:
        say(_summary(without_user(source), counters))
    if until_end and counters.refused:
        raise typer.Exit(SOME_REFUSED)


def parse_topic(url: str) -> Topic:
    """Brokers and topic of a URL. Raises BadInput."""
    brokers, slash, name = url.removeprefix(SCHEME).partition("/")
    if "@" in brokers:
        raise BadInput(
            "credentials do not belong into the URL; send --kafka sasl.username=... or @FILE"
        )
    if not url.startswith(SCHEME) or not slash or not brokers or not name or "/" in name:
        raise BadInput(f"a topic is kafka://HOST:PORT/TOPIC, got {url!r}")
    return Topic(brokers, name)


def _open_kafka(asked: Asked, client: Client) -> Opened:
    topic = parse_topic(asked.source)
    _check_installed("kafka", "confluent_kafka", "confluent-kafka")
    from dualstream.service.cli.consume.kafka import KafkaReader, parse_settings
    from dualstream.service.cli.consume.kafka_writer import KafkaLetters, KafkaWriter

    settings = parse_settings(asked.kafka)

    def letters(url: str) -> DeadLetters:
        to = parse_topic(url)
        return KafkaLetters(KafkaWriter(to.brokers, to.name, settings, say_error))

    dead = _dead_letters(asked.dead_letter, ("kafka",), letters)
    group = asked.group or f"dualstream-{asked.model}"
    reader = KafkaReader(topic.brokers, [topic.name], group, settings, say_error)
    return Opened(reader, ModelServer(client, asked.model), RowLines(asked.columns), dead)


def _open_redis(asked: Asked, client: Client) -> Opened:
    _refuse_options_of_kafka(asked)
    _check_installed("redis", "redis", "redis")
    from dualstream.service.cli.consume.redis import RedisLetters, RedisReader, parse_stream

    stream, columns = parse_stream(asked.source), asked.columns
    check_columns(columns)
    password = os.environ.get("REDISCLI_AUTH")  # noqa: TID251 - as redis-cli reads it
    dead = _dead_letters(
        asked.dead_letter, _REDIS, lambda url: RedisLetters(parse_stream(url), password)
    )
    reader, lines = RedisReader(stream, password, say_error), EntryLines(columns)
    return Opened(reader, EntryServer(client, asked.model, stream.source, lines), lines, dead)


def _open_nats(asked: Asked, client: Client) -> Opened:
    _refuse_options_of_kafka(asked)
    _check_installed("nats", "nats", "nats-py")
    from dualstream.service.cli.consume.nats import NatsReader, parse_nats

    stream, dead = parse_nats(asked.source), _dead_letters(asked.dead_letter, (), FileLetters)
    user, password = (os.environ.get(f"NATS_{name}") for name in ("USER", "PASSWORD"))  # noqa: TID251
    reader = NatsReader(stream, say_error, user, password)
    return Opened(reader, ModelServer(client, asked.model), RowLines(asked.columns), dead)


_REDIS = ("redis", "rediss")
_OPENERS = {
    "kafka": _open_kafka,
    **dict.fromkeys(_REDIS, _open_redis),
    **dict.fromkeys(("nats", "tls"), _open_nats),
}
_KNOWN = "kafka://HOST:PORT/TOPIC, redis://HOST:PORT/DB/STREAM or nats://HOST:PORT/STREAM"


def _opener(source: str) -> Callable[[Asked, Client], Opened]:
    scheme, separator, _ = source.partition("://")
    if not separator or scheme not in _OPENERS:
        raise BadInput(f"the source must be {_KNOWN}, got {without_user(source)!r}")
    return _OPENERS[scheme]


def _refuse_options_of_kafka(asked: Asked) -> None:
    for name, given in (("kafka", asked.kafka), ("group", asked.group)):
        if given:
            raise BadInput(f"--{name} is an option of kafka:// sources")


def _check_installed(scheme: str, module: str, package: str) -> None:
    if find_spec(module) is None:
        fail(f"{scheme}:// needs {package}: pip install 'dualstream[{scheme}]'", WRONG)


def _dead_letters(
    given: str | None, schemes: Sequence[str], letters: Callable[[Any], DeadLetters]
) -> DeadLetters:
    """The dead-letter queue; `letters` makes one for a URL of these schemes."""
    if given is None:
        return LoggedLetters(say_error)
    scheme, separator, _ = given.partition("://")
    if not separator:
        return FileLetters(Path(given))
    if scheme not in schemes:
        known = " or ".join(("a file", *(f"{one}://..." for one in schemes[:1])))
        raise BadInput(f"--dead-letter must be {known} for this source")
    return letters(given)


@contextmanager
def _reader_errors() -> Iterator[None]:
    try:
        yield
    except ReaderError as wrong:
        fail(str(wrong), WRONG)


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM and at the first Ctrl-C; the second one interrupts."""

    def on_signal(number: int, frame: Any) -> None:
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _summary(source: str, counters: Counters) -> str:
    known = f", {counters.duplicates:,} learned before" * bool(counters.duplicates)
    refused = f", {counters.refused:,} refused" * bool(counters.refused)
    paused = f", {counters.paused:,} in quarantine" * bool(counters.paused)
    return f"{source}: {counters.learned:,} rows learned{known}{refused}{paused}"

"""Command `consume`: learn the messages of a Kafka topic."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
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
from dualstream.service.cli.consume.labels import Labels
from dualstream.service.cli.consume.loop import EARLIEST, LATEST, Consumer, Server, Step
from dualstream.service.cli.consume.metrics import MetricsServer, exposition, now_ms
from dualstream.service.cli.consume.predictions import Predictions
from dualstream.service.cli.consume.reader import ReaderError
from dualstream.service.cli.consume.routes import RoutedModels, check_route
from dualstream.service.cli.consume.rows import RowLines, parse_columns
from dualstream.service.cli.consume.server import ModelServer
from dualstream.service.cli.models import read_spec

MAX_BATCH_BYTES = 1024 * 1024
"""Bytes of the rows of a batch; a longer row is a batch of its own."""
SCHEME = "kafka://"


class Topic(NamedTuple):
    """Address of a topic: `kafka://HOST:PORT,HOST:PORT/TOPIC`."""

    brokers: str
    name: str


@app.command()
def consume(
    source: Annotated[str, typer.Argument(help="kafka://HOST:PORT/TOPIC", metavar="SOURCE")],
    model: Annotated[
        str | None,
        typer.Option(help="Id of the model that learns.", autocompletion=known_models),
    ] = None,
    route: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Instead of --model: field of the message with the id of its model: key,"
            " headers.NAME or value.COLUMN.",
        ),
    ] = None,
    create: Annotated[
        str | None,
        typer.Option(metavar="SPEC.json", help="With --route: create models that do not exist."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Consumer group that shares the partitions; default: dualstream-MODEL or -FIELD."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=COLUMN",
            help="Add a field of the message to the row: key, timestamp, offset or headers.NAME;"
            " repeatable.",
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
            help="File or kafka://HOST:PORT/TOPIC of refused messages; default: they are logged.",
        ),
    ] = None,
    predict_to: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Score rows without a label, remember them, and write the answers to this topic:"
            " TOPIC of the same brokers, or kafka://HOST:PORT/TOPIC.",
        ),
    ] = None,
    labels: Annotated[
        bool,
        typer.Option(
            "--labels", help="The messages are late labels: ids of remembered rows, and labels."
        ),
    ] = False,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="With --labels: topic of the same brokers whose rows are scored. A label waits"
            " for its row while this topic has rows that are not.",
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
    """Learn the messages of a Kafka topic, each once, until SIGTERM or Ctrl-C.

    Reads each partition from the model's cursor, which moves in the step that journals the rows.
    Run any number of processes: they share the partitions. Waits while the server is away.
    Needs `pip install 'dualstream[kafka]'`.

    Examples:

        dualstream consume kafka://localhost:9092/clicks --model clicks
        dualstream consume kafka://localhost:9092/clicks --model clicks --dead-letter bad.ndjson
        dualstream consume kafka://localhost:9092/views --model clicks --predict-to scores
        dualstream consume kafka://localhost:9092/outcomes --model clicks --labels --features views
        dualstream consume kafka://localhost:9092/events --route headers.tenant
    """
    counters = Counters()
    with ExitStack() as stack:
        client = stack.enter_context(connected(url, api_key, 0.0, as_json))
        stack.enter_context(_reader_errors())
        topic = parse_topic(source)
        if reset not in (None, EARLIEST, LATEST):
            raise BadInput(f"--reset must be {EARLIEST} or {LATEST}, got {reset!r}")
        learner = _learner(model, route, create, features, labels, predict_to)
        lines, settings = RowLines(parse_columns(column or ())), _settings(kafka or ())
        dead = _dead_letters(dead_letter, settings)
        if metrics_port is not None:
            served = MetricsServer(
                lambda: exposition(counters, learner, now_ms()), metrics_host, metrics_port
            )
            stack.enter_context(closing(served))
            say_error(f"metrics: http://{metrics_host}:{served.port}/metrics")
        default_group = f"dualstream-{learner}" + "-labels" * labels
        reader = _kafka_reader(topic, group or default_group, settings)
        stack.enter_context(closing(reader))
        one = ModelServer(client, learner)
        server: Server = one
        step: Step | None = None
        if route is not None:
            server = _routed_models(client, route, create, reader)
        elif labels:
            rows = None if features is None else _kafka_progress(topic.brokers, features, settings)
            stack.enter_context(closing(rows) if rows else nullcontext())
            step = Labels(one, rows, counters)
        elif predict_to is not None:
            writer = _kafka_writer(predict_to, topic, settings)
            step = Predictions(one, writer, counters, say_error)
        consumer = Consumer(
            reader,
            server,
            lines,
            dead,
            max_rows=batch_rows,
            max_bytes=MAX_BATCH_BYTES,
            max_wait_s=batch_wait,
            reset=reset,
            step=step,
            counters=counters,
            log=say_error,
        )
        with _stopped_by_signals(consumer.stop):
            consumer.run(until_end=until_end)
    if as_json:
        print_json(msgspec.to_builtins(counters))
    else:
        say(_summary(source, counters))
    if until_end and counters.refused:
        raise typer.Exit(SOME_REFUSED)


def _learner(
    model: str | None,
    route: str | None,
    create: str | None,
    features: str | None,
    labels: bool,
    predict_to: str | None,
) -> str:
    """The model or the route. Raises BadInput for options that exclude each other."""
    if labels and predict_to is not None:
        raise BadInput("--labels and --predict-to are two commands, one for each topic")
    if features is not None and not labels:
        raise BadInput("--features belongs to --labels")
    if create is not None and route is None:
        raise BadInput("--create belongs to --route")
    if route is not None and (labels or predict_to is not None):
        raise BadInput("--route only learns; it takes neither --labels nor --predict-to")
    if route is not None:
        check_route(route)
    found = route if model is None else model
    if found is None or (model is not None and route is not None):
        raise BadInput("send either --model ID or --route FIELD")
    return found


def _routed_models(client: Client, route: str, create: str | None, reader: Any) -> RoutedModels:
    spec = None if create is None else read_spec(create)
    return RoutedModels(
        route,
        lambda model: ModelServer(client, model),
        reader,
        None if spec is None else lambda model: client.create(model, spec),
    )


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


def _settings(given: Sequence[str]) -> dict[str, str]:
    if find_spec("confluent_kafka") is None:
        fail("kafka:// needs confluent-kafka: pip install 'dualstream[kafka]'", WRONG)
    from dualstream.service.cli.consume.kafka import parse_settings

    return parse_settings(given)


def _dead_letters(given: str | None, settings: dict[str, str]) -> DeadLetters:
    if given is None:
        return LoggedLetters(say_error)
    if not given.startswith(SCHEME):
        return FileLetters(Path(given))
    from dualstream.service.cli.consume.kafka_writer import KafkaLetters

    return KafkaLetters(_kafka_writer(given, parse_topic(given), settings))


def _kafka_writer(given: str, source: Topic, settings: dict[str, str]) -> Any:
    """Writer of a topic: a URL, or the name of a topic of the source's brokers."""
    from dualstream.service.cli.consume.kafka_writer import KafkaWriter

    topic = parse_topic(given if "/" in given else f"{SCHEME}{source.brokers}/{given}")
    return KafkaWriter(topic.brokers, topic.name, settings, say_error)


def _kafka_progress(brokers: str, topic: str, settings: dict[str, str]) -> Any:
    from dualstream.service.cli.consume.progress import KafkaProgress

    return KafkaProgress(brokers, topic, settings, say_error)


def _kafka_reader(topic: Topic, group: str, settings: dict[str, str]) -> Any:
    from dualstream.service.cli.consume.kafka import KafkaReader

    return KafkaReader(topic.brokers, [topic.name], group, settings, say_error)


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
    scored = f", {counters.predicted:,} scored" * bool(counters.predicted)
    return f"{source}: {counters.learned:,} rows learned{scored}{known}{refused}{paused}"

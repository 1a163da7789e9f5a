"""Command `consume`: learn the messages of Kafka, Redis, NATS or MQTT."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Annotated, Any

import typer

from dualstream.consume.counters import Counters
from dualstream.consume.loop import Consumer
from dualstream.consume.metrics import MetricsServer, exposition, now_ms
from dualstream.consume.reader import ReaderError, without_user
from dualstream.consume.rows import parse_columns
from dualstream.consume.schemes import ConsumeOptions, SourceOpener
from dualstream.service.cli.commands import app
from dualstream.service.cli.common import JSON, SOME_REFUSED, WRONG, fail, report, say_error
from dualstream.service.cli.connection import URL, ApiKey, Url, complete_model, connected
from dualstream.service.cli.models import read_spec
from dualstream.service.server.stop_signals import handle_stop_signals
from dualstream.wire.plural import plural

STOP_S = 10.0
"""Seconds after a signal for the answers of the server. Kubernetes kills after 30 s."""
MAX_BATCH_BYTES = 1024 * 1024
"""Bytes of the rows of a batch; a longer row is a batch of its own."""


@app.command()
def consume(
    source: Annotated[
        str,
        typer.Argument(
            help="kafka://HOST:PORT/TOPIC, redis://HOST:PORT/DB/STREAM, nats://HOST:PORT/STREAM or"
            " mqtt://HOST:PORT/TOPIC",
            metavar="SOURCE",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="Id of the model that learns.", autocompletion=complete_model)
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
            help="Kafka group that shares the partitions, or client id of MQTT; default:"
            " dualstream-MODEL or -FIELD, with --observe dualstream-MODEL-observe. --labels"
            " appends -labels to it."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=COLUMN",
            help="Add a field of the message to the row: key, timestamp, offset or headers.NAME (of"
            " Redis timestamp or offset; the key of NATS is the subject, of MQTT the topic);"
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
            help="Refused messages: a file, or a topic or stream like SOURCE; default: the log.",
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
    observe: Annotated[
        bool,
        typer.Option(
            "--observe", help="The messages need no label: they enter the model's history."
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
    """Learn the messages of a topic or a stream, each once, until SIGTERM or Ctrl-C.

    Reads each partition from the model's cursor, which moves in the step that journals the rows.
    Any number of processes share the partitions of a topic; one reads a stream. Waits while the
    server is away. Needs `pip install 'dualstream[kafka]'`, `[redis]`, `[nats]` or `[mqtt]`.
    Passwords are in the URL, or in REDISCLI_AUTH, NATS_USER, NATS_PASSWORD, MQTT_USER and
    MQTT_PASSWORD. MQTT delivers a message again after a kill: give each an id.

    Examples:

        dualstream consume kafka://localhost:9092/clicks --model clicks
        dualstream consume redis://localhost:6379/0/clicks --model clicks
        dualstream consume nats://localhost:4222/CLICKS --model clicks
        dualstream consume 'mqtt://localhost:1883/plant/+/temperature' --model heat
        dualstream consume kafka://localhost:9092/clicks --model clicks --dead-letter bad.ndjson
        dualstream consume kafka://localhost:9092/views --model clicks --predict-to scores
        dualstream consume kafka://localhost:9092/outcomes --model clicks --labels --features views
        dualstream consume kafka://localhost:9092/visits --model clicks --observe
        dualstream consume kafka://localhost:9092/events --route headers.tenant
        dualstream consume kafka://localhost:9092/views --route key --predict-to scores
    """
    counters = Counters()
    with ExitStack() as stack:
        client = stack.enter_context(connected(url, api_key, 0.0, as_json))
        stack.enter_context(_reader_errors())
        options = ConsumeOptions(
            source=source,
            model=model,
            route=route,
            create=create,
            group=group,
            columns=parse_columns(column or ()),
            kafka=kafka or (),
            dead_letter=dead_letter,
            predict_to=predict_to,
            labels=labels,
            observe=observe,
            features=features,
            reset=reset,
            batch_rows=batch_rows,
            until_end=until_end,
        )
        options.check()
        spec = None if create is None else read_spec(create)
        opened = SourceOpener(options, client, counters, stack, say_error, spec).open()
        if metrics_port is not None:
            served = MetricsServer(
                lambda: exposition(counters, options.learner, now_ms()), metrics_host, metrics_port
            )
            stack.enter_context(closing(served))
            say_error(f"metrics: http://{metrics_host}:{served.port}/metrics")
        consumer = Consumer(
            opened.reader,
            opened.server,
            opened.lines,
            opened.dead,
            max_rows=batch_rows,
            max_bytes=MAX_BATCH_BYTES,
            max_wait_s=batch_wait,
            reset=reset,
            step=opened.step,
            counters=counters,
            log=say_error,
        )
        with _stopped_by_signals(consumer.stop):
            consumer.run(until_end=until_end)
    done = "observed" if observe else "learned"
    report(as_json, counters, _summary(without_user(source), counters, done))
    if until_end and counters.refused:
        raise typer.Exit(SOME_REFUSED)


@contextmanager
def _reader_errors() -> Iterator[None]:
    try:
        yield
    except ReaderError as wrong:
        fail(str(wrong), WRONG)


class _StopTimeout(BaseException):
    """The server has not answered within STOP_S. As KeyboardInterrupt, it is no Exception."""


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM, SIGHUP and the first Ctrl-C; the second one interrupts.

    After STOP_S a request without an answer is interrupted, too. The cursor decides what was
    learned, as after a kill.
    """

    def on_signal(number: int, frame: Any) -> None:
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if not any(signal.getitimer(signal.ITIMER_REAL)):
            signal.setitimer(signal.ITIMER_REAL, STOP_S)

    def on_timeout(number: int, frame: Any) -> None:
        raise _StopTimeout

    before = handle_stop_signals(on_signal)
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, on_timeout)
    try:
        yield
    except _StopTimeout:
        say_error("stopped while waiting: what the server has not learned stays in the source")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _summary(source: str, counters: Counters, done: str) -> str:
    duplicates = f", {counters.duplicates:,} {done} before" * bool(counters.duplicates)
    refused = f", {counters.refused:,} refused" * bool(counters.refused)
    paused = f", {counters.paused:,} in quarantine" * bool(counters.paused)
    scored = f", {counters.predicted:,} scored" * bool(counters.predicted)
    return (
        f"{source}: {plural(counters.learned, 'row')} {done}{scored}{duplicates}{refused}{paused}"
    )

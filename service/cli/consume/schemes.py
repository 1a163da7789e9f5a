"""What each scheme of a source provides for the loop: reader, server, lines and dead letters."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from dualstream.client import BadInput, Client
from dualstream.service.cli.common import WRONG, fail, say_error
from dualstream.service.cli.consume.batch import Step
from dualstream.service.cli.consume.counters import Counters
from dualstream.service.cli.consume.dead_letters import DeadLetters, FileLetters, LoggedLetters
from dualstream.service.cli.consume.entries import EntryLines, check_columns
from dualstream.service.cli.consume.labels import Labels
from dualstream.service.cli.consume.loop import EARLIEST, LATEST
from dualstream.service.cli.consume.predictions import Predictions
from dualstream.service.cli.consume.reader import Reader, without_user
from dualstream.service.cli.consume.routes import RoutedModels, check_route
from dualstream.service.cli.consume.rows import RowLines
from dualstream.service.cli.consume.server import EntryServer, ModelServer, Server
from dualstream.service.cli.models import read_spec

_KAFKA = "kafka://"


class Topic(NamedTuple):
    """Address of a topic: `kafka://HOST:PORT,HOST:PORT/TOPIC`."""

    brokers: str
    name: str


class Asked(NamedTuple):
    """Options of the command that say what is read, and what becomes of it."""

    source: str
    model: str | None
    route: str | None
    create: str | None
    group: str | None
    columns: Mapping[str, str]
    kafka: Sequence[str]
    dead_letter: str | None
    predict_to: str | None
    labels: bool
    features: str | None
    reset: str | None
    batch_rows: int
    until_end: bool

    @property
    def learner(self) -> str:
        """The model, or the route."""
        return self.model or self.route or ""

    def check(self) -> None:
        """Raise BadInput for options that exclude each other."""
        if self.reset not in (None, EARLIEST, LATEST):
            raise BadInput(f"--reset must be {EARLIEST} or {LATEST}, got {self.reset!r}")
        if self.labels and self.predict_to is not None:
            raise BadInput("--labels and --predict-to are two commands, one for each topic")
        if self.features is not None and not self.labels:
            raise BadInput("--features belongs to --labels")
        if self.create is not None and self.route is None:
            raise BadInput("--create belongs to --route")
        if self.create is not None and self.labels:
            raise BadInput("--create belongs to the command that reads the rows, not to --labels")
        if self.route is not None:
            check_route(self.route)
        if (self.model is None) == (self.route is None):
            raise BadInput("send either --model ID or --route FIELD")
        if self.dead_letter == self.source:
            raise BadInput("--dead-letter must not be the source itself")

    def refuse(self, options: Mapping[str, str]) -> None:
        """Raise BadInput for an option that the source does not have; `options` say why."""
        for name, why in options.items():
            if getattr(self, name):
                raise BadInput(f"--{name.replace('_', '-')} {why}")


class Opened(NamedTuple):
    """What a scheme provides for the loop."""

    reader: Reader
    server: Server
    lines: RowLines
    dead: DeadLetters
    step: Step | None = None
    """What is done with rows before they are learned."""


def open_source(asked: Asked, client: Client, counters: Counters, stack: ExitStack) -> Opened:
    """Open the source; the stack closes it. Raises BadInput, ReaderError."""
    asked.check()
    scheme, separator, _ = asked.source.partition("://")
    if not separator or scheme not in _OPENERS:
        raise BadInput(f"the source must be {_KNOWN}, got {without_user(asked.source)!r}")
    return _OPENERS[scheme](asked, client, counters, stack)


def parse_topic(url: str) -> Topic:
    """Brokers and topic of a URL. Raises BadInput."""
    brokers, slash, name = url.removeprefix(_KAFKA).partition("/")
    if "@" in brokers:
        raise BadInput(
            "credentials do not belong into the URL; send --kafka sasl.username=... or @FILE"
        )
    if not url.startswith(_KAFKA) or not slash or not brokers or not name or "/" in name:
        raise BadInput(f"a topic is kafka://HOST:PORT/TOPIC, got {url!r}")
    return Topic(brokers, name)


def _open_kafka(asked: Asked, client: Client, counters: Counters, stack: ExitStack) -> Opened:
    topic = parse_topic(asked.source)
    _check_installed("kafka", "confluent_kafka", "confluent-kafka")
    from dualstream.service.cli.consume.kafka import KafkaReader, parse_settings
    from dualstream.service.cli.consume.kafka_writer import KafkaLetters, KafkaWriter
    from dualstream.service.cli.consume.progress import KafkaProgress

    settings = parse_settings(asked.kafka)

    def writer(given: str) -> KafkaWriter:
        """Writer of a topic: a URL, or the name of a topic of the source's brokers."""
        to = parse_topic(given if "/" in given else f"{_KAFKA}{topic.brokers}/{given}")
        if to == topic:
            raise BadInput("the source itself cannot be written; choose another topic")
        return KafkaWriter(to.brokers, to.name, settings, say_error)

    dead = _dead_letters(asked.dead_letter, ("kafka",), lambda url: KafkaLetters(writer(url)))
    scorers = asked.group or f"dualstream-{asked.learner}"
    group = scorers + "-labels" * asked.labels
    reader = KafkaReader(topic.brokers, [topic.name], group, settings, say_error)
    stack.enter_context(closing(reader))
    one = ModelServer(client, asked.learner)
    models = _routed_models(client, asked, reader) if asked.route else one
    step: Step | None = None
    if asked.labels:
        rows = None
        if asked.features is not None:
            cursors = None if asked.route else one.sources
            rows = KafkaProgress(
                topic.brokers, asked.features, scorers, cursors, settings, say_error
            )
            stack.enter_context(closing(rows))
        step = Labels(models, rows, counters)
    elif asked.predict_to is not None:
        step = Predictions(models, writer(asked.predict_to), counters, say_error)
    return Opened(reader, models, RowLines(asked.columns), dead, step)


def _routed_models(client: Client, asked: Asked, reader: Any) -> RoutedModels:
    spec = None if asked.create is None else read_spec(asked.create)
    return RoutedModels(
        asked.learner,
        lambda model: ModelServer(client, model),
        reader,
        None if spec is None else lambda model: client.create(model, spec),
        say_error,
    )


def _open_redis(asked: Asked, client: Client, counters: Counters, stack: ExitStack) -> Opened:
    asked.refuse(_OF_KAFKA)
    _check_installed("redis", "redis", "redis")
    from dualstream.service.cli.consume.redis import RedisLetters, RedisReader, parse_stream

    stream, columns = parse_stream(asked.source), asked.columns
    check_columns(columns)
    password = os.environ.get("REDISCLI_AUTH")  # noqa: TID251 - as redis-cli reads it
    dead = _dead_letters(
        asked.dead_letter, _REDIS, lambda url: RedisLetters(parse_stream(url), password)
    )
    reader, lines = RedisReader(stream, password, say_error), EntryLines(columns)
    stack.enter_context(closing(reader))
    return Opened(reader, EntryServer(client, asked.learner, stream.source, lines), lines, dead)


def _open_nats(asked: Asked, client: Client, counters: Counters, stack: ExitStack) -> Opened:
    asked.refuse(_OF_KAFKA)
    _check_installed("nats", "nats", "nats-py")
    from dualstream.service.cli.consume.nats import NatsReader, parse_nats

    stream, dead = parse_nats(asked.source), _dead_letters(asked.dead_letter, (), FileLetters)
    user, password = (os.environ.get(f"NATS_{name}") for name in ("USER", "PASSWORD"))  # noqa: TID251
    reader = NatsReader(stream, say_error, user, password)
    stack.enter_context(closing(reader))
    return Opened(reader, ModelServer(client, asked.learner), RowLines(asked.columns), dead)


def _open_mqtt(asked: Asked, client: Client, counters: Counters, stack: ExitStack) -> Opened:
    asked.refuse({name: why for name, why in _OF_KAFKA.items() if name != "group"} | _NOT_OF_MQTT)
    for field in ("offset", "timestamp"):
        if field in asked.columns.values():
            raise BadInput(f"--column {field}: messages of MQTT have no {field}")
    _check_installed("mqtt", "paho", "paho-mqtt")
    from dualstream.service.cli.consume.mqtt import AcknowledgingServer, MqttReader, parse_mqtt

    topic, dead = parse_mqtt(asked.source), _dead_letters(asked.dead_letter, (), FileLetters)
    user, password = (os.environ.get(f"MQTT_{name}") for name in ("USER", "PASSWORD"))  # noqa: TID251
    topic = topic._replace(user=topic.user or user, password=topic.password or password)
    # The broker sends the next batch while one is posted.
    group, window = asked.group or f"dualstream-{asked.learner}", 2 * asked.batch_rows
    reader = MqttReader(topic, group, window, say_error)
    stack.enter_context(closing(reader))
    say_error(
        "MQTT delivers a message again after a kill or a lost connection; one without an id is then"
        " learned again"
    )
    server = AcknowledgingServer(client, asked.learner, reader)
    return Opened(reader, server, RowLines(asked.columns), dead)


_REDIS = ("redis", "rediss")
_OPENERS: Mapping[str, Callable[[Asked, Client, Counters, ExitStack], Opened]] = {
    "kafka": _open_kafka,
    **dict.fromkeys(_REDIS, _open_redis),
    **dict.fromkeys(("nats", "tls"), _open_nats),
    **dict.fromkeys(("mqtt", "mqtts"), _open_mqtt),
}
_KNOWN = (
    "kafka://HOST:PORT/TOPIC, redis://HOST:PORT/DB/STREAM, nats://HOST:PORT/STREAM or"
    " mqtt://HOST:PORT/TOPIC"
)
# Options that a source does not have, and why.
_OF_KAFKA = dict.fromkeys(
    ("kafka", "group", "route", "predict_to", "labels"), "is an option of kafka:// sources"
)
_NOT_OF_MQTT = dict.fromkeys(
    ("reset", "until_end"), "does not apply to mqtt:// sources: topics have no begin and no end"
)


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

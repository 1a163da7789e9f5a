"""What each scheme of a source provides for the loop: reader, server, lines and dead letters."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from dualstream.client import BadInput, Client
from dualstream.consume.batch import Step
from dualstream.consume.counters import Counters
from dualstream.consume.dead_letters import DeadLetters, FileLetters, LoggedLetters
from dualstream.consume.entries import EntryLines, check_columns
from dualstream.consume.labels import Labels
from dualstream.consume.loop import EARLIEST, LATEST
from dualstream.consume.predictions import Predictions
from dualstream.consume.reader import Reader, without_user
from dualstream.consume.routed_models import RoutedModels, check_route
from dualstream.consume.rows import RowLines
from dualstream.consume.server import EntryServer, ModelServer, Server

_KAFKA = "kafka://"


class Topic(NamedTuple):
    """Address of a topic: `kafka://HOST:PORT,HOST:PORT/TOPIC`."""

    brokers: str
    name: str


class ConsumeOptions(NamedTuple):
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
    observe: bool
    features: str | None
    reset: str | None
    batch_rows: int
    until_end: bool

    @property
    def learner(self) -> str:
        """The model, or the route."""
        return self.model or self.route or ""

    @property
    def group_id(self) -> str:
        """The group, by default one of its own for rows that are observed."""
        return self.group or f"dualstream-{self.learner}{'-observe' * self.observe}"

    def check(self) -> None:
        """Raise BadInput for options that exclude each other."""
        if self.reset not in (None, EARLIEST, LATEST):
            raise BadInput(f"--reset must be {EARLIEST} or {LATEST}, got {self.reset!r}")
        if self.labels and self.predict_to is not None:
            raise BadInput("--labels and --predict-to are two commands, one for each topic")
        if self.observe and (self.labels or self.predict_to is not None):
            raise BadInput(
                "--observe excludes --labels and --predict-to: observed rows get no label"
            )
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


@dataclass(frozen=True, slots=True)
class SourceOpener:
    """Opens the source that the options name.

    stack  closes the source
    log    takes a line for people
    spec   of models that a route creates; None if messages of unknown models are dead letters
    """

    options: ConsumeOptions
    client: Client
    counters: Counters
    stack: ExitStack
    log: Callable[[str], None]
    spec: Mapping[str, Any] | None = None

    def open(self) -> Opened:
        """Raises BadInput, ReaderError."""
        source = self.options.source
        scheme, separator, _ = source.partition("://")
        if not separator or scheme not in _OPENERS:
            raise BadInput(f"the source must be {_SCHEMES}, got {without_user(source)!r}")
        return _OPENERS[scheme](self)

    def kafka(self) -> Opened:
        options, log = self.options, self.log
        topic = parse_topic(options.source)
        _check_installed("kafka", "confluent_kafka", "confluent-kafka")
        from dualstream.consume.kafka import KafkaReader, parse_settings
        from dualstream.consume.kafka_writer import KafkaLetters, KafkaWriter
        from dualstream.consume.progress import KafkaProgress

        settings = parse_settings(options.kafka)

        def writer(name: str) -> KafkaWriter:
            """Writer of a topic: a URL, or the name of a topic of the source's brokers."""
            to = parse_topic(name if "/" in name else f"{_KAFKA}{topic.brokers}/{name}")
            if to == topic:
                raise BadInput("the source itself cannot be written; choose another topic")
            return KafkaWriter(to.brokers, to.name, settings, log)

        dead = self._dead_letters(("kafka",), lambda url: KafkaLetters(writer(url)))
        scorers = options.group_id
        group = scorers + "-labels" * options.labels
        reader = KafkaReader(topic.brokers, [topic.name], group, settings, log)
        self.stack.enter_context(closing(reader))
        one = ModelServer(self.client, options.learner, options.observe)
        models = self._routed_models(reader) if options.route else one
        step: Step | None = None
        if options.labels:
            rows = None
            if options.features is not None:
                cursors = None if options.route else one.sources
                rows = KafkaProgress(
                    topic.brokers, options.features, scorers, cursors, settings, log
                )
                self.stack.enter_context(closing(rows))
            step = Labels(models, rows, self.counters)
        elif options.predict_to is not None:
            step = Predictions(models, writer(options.predict_to), self.counters, log)
        return Opened(reader, models, RowLines(options.columns), dead, step)

    def _routed_models(self, reader: Any) -> RoutedModels:
        client, spec, observes = self.client, self.spec, self.options.observe
        return RoutedModels(
            self.options.learner,
            lambda model: ModelServer(client, model, observes),
            reader,
            None if spec is None else lambda model: client.create(model, spec),
            self.log,
        )

    def redis(self) -> Opened:
        self.options.refuse(_OF_KAFKA)
        _check_installed("redis", "redis", "redis")
        from dualstream.consume.redis import RedisLetters, RedisReader, parse_stream

        options = self.options
        stream, columns = parse_stream(options.source), options.columns
        check_columns(columns)
        password = os.environ.get("REDISCLI_AUTH")  # noqa: TID251 - as redis-cli reads it
        dead = self._dead_letters(_REDIS, lambda url: RedisLetters(parse_stream(url), password))
        reader, lines = RedisReader(stream, password, self.log), EntryLines(columns)
        self.stack.enter_context(closing(reader))
        server = EntryServer(self.client, options.learner, stream.source, lines, options.observe)
        return Opened(reader, server, lines, dead)

    def nats(self) -> Opened:
        self.options.refuse(_OF_KAFKA)
        _check_installed("nats", "nats", "nats-py")
        from dualstream.consume.nats import NatsReader, parse_nats

        stream, dead = parse_nats(self.options.source), self._dead_letters((), FileLetters)
        user, password = (os.environ.get(f"NATS_{name}") for name in ("USER", "PASSWORD"))  # noqa: TID251
        reader = NatsReader(stream, self.log, user, password)
        self.stack.enter_context(closing(reader))
        server = ModelServer(self.client, self.options.learner, self.options.observe)
        return Opened(reader, server, RowLines(self.options.columns), dead)

    def mqtt(self) -> Opened:
        options = self.options
        options.refuse({name: why for name, why in _OF_KAFKA.items() if name != "group"})
        options.refuse(_NOT_OF_MQTT)
        for field in ("offset", "timestamp"):
            if field in options.columns.values():
                raise BadInput(f"--column {field}: messages of MQTT have no {field}")
        _check_installed("mqtt", "paho", "paho-mqtt")
        from dualstream.consume.mqtt import AcknowledgingServer, MqttReader, parse_mqtt

        topic, dead = parse_mqtt(options.source), self._dead_letters((), FileLetters)
        user, password = (os.environ.get(f"MQTT_{name}") for name in ("USER", "PASSWORD"))  # noqa: TID251
        topic = topic._replace(user=topic.user or user, password=topic.password or password)
        # The broker sends the next batch while one is posted.
        reader = MqttReader(topic, options.group_id, 2 * options.batch_rows, self.log)
        self.stack.enter_context(closing(reader))
        self.log(
            "MQTT delivers a message again after a kill or a lost connection; one without an id is"
            " then learned again"
        )
        server = AcknowledgingServer(self.client, options.learner, reader, options.observe)
        return Opened(reader, server, RowLines(options.columns), dead)

    def _dead_letters(
        self, schemes: Sequence[str], letters: Callable[[Any], DeadLetters]
    ) -> DeadLetters:
        """The dead-letter queue; `letters` makes one for a URL of these schemes."""
        sink = self.options.dead_letter
        if sink is None:
            return LoggedLetters(self.log)
        scheme, separator, _ = sink.partition("://")
        if not separator:
            return FileLetters(Path(sink))
        if scheme not in schemes:
            kinds = " or ".join(("a file", *(f"{one}://..." for one in schemes[:1])))
            raise BadInput(f"--dead-letter must be {kinds} for this source")
        return letters(sink)


def _check_installed(scheme: str, module: str, package: str) -> None:
    if find_spec(module) is None:
        raise BadInput(f"{scheme}:// needs {package}: pip install 'dualstream[{scheme}]'")


_REDIS = ("redis", "rediss")
_OPENERS: Mapping[str, Callable[[SourceOpener], Opened]] = {
    "kafka": SourceOpener.kafka,
    **dict.fromkeys(_REDIS, SourceOpener.redis),
    **dict.fromkeys(("nats", "tls"), SourceOpener.nats),
    **dict.fromkeys(("mqtt", "mqtts"), SourceOpener.mqtt),
}
_SCHEMES = (
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

"""Reader of MQTT topics.

The broker keeps a session for the client id, and delivers a message again until it is acknowledged.
The reader does that after the server has learned the message. Messages have no offsets in MQTT, so
the reader counts them, from the model's cursor on.
"""

import re
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from socket import SHUT_WR, socket
from threading import Condition
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from paho.mqtt.client import Client as MqttClient, MQTTMessage, topic_matches_sub
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from dualstream.client import BadInput, Client
from dualstream.consume.batch import CursorMove, Outcome, Row
from dualstream.consume.reader import Bounds, Message, ReaderError, StreamReader, check_source
from dualstream.consume.server import ModelServer

START_S = 10.0
"""Seconds to wait for the broker at the start."""
MAX_RETRY_S = 5
"""Longest pause before the next attempt to connect."""
MAX_WINDOW = 65_535
"""The largest Receive Maximum of MQTT 5."""
MAX_BYTES, MESSAGE_BYTES = 64 << 20, 1000
"""Maximum bytes of the messages in memory, and about those of an empty one."""
NEVER = 0xFFFFFFFF
"""Expiry of a session that the broker keeps."""
TAKEN_OVER = 142
"""Reason of a disconnection: another client has connected with the same id."""
_FILTER = re.compile(r"((?:[^+#/\0]*|\+)/)*([^+#/\0]*|\+|#)")


class MqttTopic(NamedTuple):
    """Address of topics: a broker, and a topic filter such as `plant/+/temperature`."""

    host: str
    port: int
    has_tls: bool
    user: str | None
    password: str | None
    filter: str


def parse_mqtt(url: str) -> MqttTopic:
    """Broker and topic filter of mqtt://HOST:PORT/TOPIC, or of mqtts://. Raises BadInput."""
    scheme, _, rest = url.partition("://")
    authority, _, topic = rest.partition("/")  # a # of the filter begins no fragment
    name = unquote(topic)
    try:
        parts = urlsplit(f"{scheme}://{authority}")
        port = parts.port or (8883 if scheme == "mqtts" else 1883)
    except ValueError:
        parts, port = urlsplit(""), 0
    if not parts.hostname or parts.query or parts.fragment or not name:
        raise BadInput(f"topics are {scheme}://HOST:PORT/TOPIC, got {url.rpartition('@')[2]!r}")
    if not _FILTER.fullmatch(name):
        raise BadInput(
            f"{name!r} is no topic filter: + stands for one whole level, # for all after the last /"
        )
    user, password = (one and unquote(one) for one in (parts.username, parts.password))
    return MqttTopic(parts.hostname, port, scheme == "mqtts", user, password, name)


class MqttReader(StreamReader):
    """Receives the topics of a session. Its log loses nothing and has no end.

    client_id   the broker's name of the session
    window      messages that the broker may send before it has an acknowledgement

    Raises ReaderError if the broker does not accept the connection or the subscription.
    """

    def __init__(
        self, topic: MqttTopic, client_id: str, window: int, log: Callable[[str], None]
    ) -> None:
        # The epoch changes if the connection is lost: the broker repeats what is not acknowledged.
        super().__init__(f"mqtt/{client_id}")
        check_source(self.source, f"the client id {client_id!r}")
        self._topic, self._log = topic, log
        self._broker = f"{topic.host}:{topic.port}"
        self._topic_filter = re.sub(r"^\$share/[^/]+/", "", topic.filter)
        """The filter without the name of a shared subscription."""
        self._changed = Condition()
        """Protects the fields that the thread of the connection sets."""
        self._waiting = deque[MQTTMessage]()
        """Messages without an acknowledgement, in their order."""
        self._bytes = 0
        """About the bytes of them."""
        self._is_full = False
        """Was a message left out? The broker repeats it on the next connection."""
        self._is_leaving = False
        """Is the connection closed for that?"""
        self._last_mid: int | None = None
        """Message id of the subscription whose answer closes the connection."""
        self._first = self._read = 0
        """Offset of the first of them, and how many of them `read` has returned."""
        self._started = 0
        """Epoch of the last `start`."""
        self._fault = ""
        """Why nothing more can be read."""
        self._troubles = set[str]()
        """Faults since the broker has accepted a connection."""
        self._is_subscribed = False
        self._client = self._new_client(client_id)
        try:
            self._connect(window)
        except BaseException:
            self.close()
            raise

    def _new_client(self, client_id: str) -> MqttClient:
        client = MqttClient(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            manual_ack=True,
        )
        client.reconnect_delay_set(1, MAX_RETRY_S)
        if self._topic.user is not None:
            client.username_pw_set(self._topic.user, self._topic.password)
        if self._topic.has_tls:
            client.tls_set_context(ssl.create_default_context())
        client.on_connect, client.on_subscribe = self._on_connect, self._on_subscribe
        client.on_disconnect, client.on_message = self._on_disconnect, self._on_message
        return client

    def _connect(self, window: int) -> None:
        """Connect and subscribe. Raises ReaderError."""
        session = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        session.SessionExpiryInterval = NEVER
        session.ReceiveMaximum = min(window, MAX_WINDOW)
        address = self._topic.host, self._topic.port
        try:
            self._client.connect(*address, clean_start=False, properties=session)
        except OSError as away:
            raise ReaderError(f"no MQTT broker answers at {self._broker}: {away}") from None
        self._client.loop_start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_subscribed or self._fault, START_S)
            self._raise_fault()
            if not self._is_subscribed:
                raise ReaderError(f"the MQTT broker at {self._broker} does not answer")

    def _raise_fault(self) -> None:
        if self._fault:
            raise ReaderError(self._fault)

    # -- callbacks of the thread of the connection -------------------------------------------------

    def _on_connect(self, client: Any, _: Any, flags: Any, reason: Any, about: Any) -> None:
        if reason.is_failure:
            with self._changed:
                why = f"the broker at {self._broker} refuses the connection: {reason}"
                if self._is_subscribed:  # it did not at the start
                    self._note(why)
                else:
                    self._fail(why)
            return
        if self._is_subscribed and not (self._is_leaving and flags.session_present):
            lost = "" if flags.session_present else "; it has lost the session, and its messages"
            self._log(f"MQTT: the broker answers{lost}")
            self._troubles.clear()
        with self._changed:
            self._is_full, self._is_leaving, self._last_mid = False, False, None
        self._subscribe(client)

    def _subscribe(self, client: Any) -> int | None:
        """Returns the message id of the subscription."""
        # A retained message is an old value, which was delivered when it was published.
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        mid: int | None = client.subscribe(self._topic.filter, options=options)[1]
        return mid

    def _on_subscribe(self, client: Any, _: Any, mid: Any, reasons: Any, about: Any) -> None:
        with self._changed:
            if reasons[0].is_failure:
                self._fail(f"the broker refuses the topics {self._topic.filter!r}: {reasons[0]}")
            self._is_subscribed = True
            self._changed.notify()
            # paho connects again after the shutdown.
            if mid == self._last_mid and (connection := client.socket()):
                self._is_leaving = True
                socket.shutdown(connection, SHUT_WR)  # that of TLS forgets the keys

    def _on_disconnect(self, client: Any, _: Any, flags: Any, reason: Any, about: Any) -> None:
        with self._changed:
            # The broker repeats what waits, under message ids that mean nothing any more.
            self.epoch += 1
            self._waiting.clear()
            self._bytes = 0
            if reason.value == TAKEN_OVER:
                self._fail("another client has connected with this client id; choose a --group")
            elif self._is_subscribed and not (self._fault or self._is_leaving):
                # Not every broker gives that reason.
                self._note(f"the connection of {self.source} is lost: {reason}")

    def _on_message(self, client: Any, _: Any, message: MQTTMessage) -> None:
        with self._changed:
            if not topic_matches_sub(self._topic_filter, message.topic):
                self._fail(
                    f"the session of this client id also has the topic {message.topic!r}, of an"
                    " earlier run with other topics; choose another --group"
                )
            else:
                self._add(message)
            self._changed.notify()

    def _add(self, message: MQTTMessage) -> None:
        """Keep a message in memory, or leave it and those after it out if there are too many."""
        is_too_much = self._bytes + _size(message) > MAX_BYTES and self._waiting
        if is_too_much and message.qos:
            self._is_full = True
        if is_too_much or self._is_full:
            if not message.qos:
                self._note(f"messages of QoS 0 are lost: {MAX_BYTES >> 20} MiB wait")
            return
        self._waiting.append(message)
        self._bytes += _size(message)

    def _fail(self, fault: str) -> None:
        self._fault = f"{self.source}: {fault}"
        self._changed.notify()
        self._client.disconnect()

    def _note(self, trouble: str) -> None:
        """Log a fault of the connection, once while the broker accepts none."""
        if trouble not in self._troubles:
            self._log(f"MQTT: {trouble}")
        self._troubles.add(trouble)

    # -- the session -------------------------------------------------------------------------------

    def bounds(self, source: str) -> Bounds:
        """Count from 0; the broker has no acknowledged message any more."""
        with self._changed:
            return Bounds(0, 0, self._first)

    def start(self, source: str, offset: int) -> None:
        """Count from this offset, again from the first message without an acknowledgement."""
        with self._changed:
            self._first, self._read, self._started = offset, 0, self.epoch

    def read(self, rows: int, seconds: float) -> list[Message]:
        """Up to `rows` messages, after at most `seconds` if there are none."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) > self._read or self._fault, seconds)
            self._raise_fault()
            messages = list(islice(self._waiting, self._read, self._read + rows))
            first = self._first + self._read
            self._read += len(messages)
        return [self._message(first + index, one) for index, one in enumerate(messages)]

    def _message(self, offset: int, one: MQTTMessage) -> Message:
        pairs = getattr(one.properties, "UserProperty", ())
        headers = tuple((name, value.encode()) for name, value in pairs)
        return Message(self.source, offset, bytes(one.payload), one.topic.encode(), None, headers)

    def acknowledge(self, end: int) -> None:
        """Acknowledge the messages before this offset, unless the connection was lost since."""
        with self._changed:
            while self._started == self.epoch and self._waiting and self._first < end:
                message = self._waiting.popleft()
                self._bytes -= _size(message)
                self._client.ack(message.mid, message.qos)
                self._first += 1
                self._read -= 1
            if self._is_full and not self._waiting and self._last_mid is None:
                # The answer says that the broker has read the acknowledgements.
                self._last_mid = self._subscribe(self._client)

    def lag(self, source: str, offset: int) -> None:
        """Unknown: the broker does not say what waits in a session."""

    def keep_alive(self, seconds: float) -> None:
        """Wait; the thread of the connection answers the broker."""
        time.sleep(seconds)

    def close(self) -> None:
        """Send the acknowledgements, and disconnect. The broker keeps the session."""
        self._client.on_disconnect = None
        self._client.disconnect()
        self._client.loop_stop()


def _size(message: MQTTMessage) -> int:
    """About the bytes of a message in memory."""
    pairs = getattr(message.properties, "UserProperty", ())
    pairs_size = sum(len(name) + len(value) for name, value in pairs)
    return len(message.payload) + len(message.topic) + pairs_size + MESSAGE_BYTES


class AcknowledgingServer(ModelServer):
    """As `ModelServer`; acknowledges messages that the server has learned."""

    def __init__(
        self, client: Client, model: str, reader: MqttReader, observes: bool = False
    ) -> None:
        super().__init__(client, model, observes)
        self._reader = reader

    def learn(self, move: CursorMove, rows: Sequence[Row]) -> Outcome:
        """As of `ModelServer`, then acknowledge the messages."""
        outcome = super().learn(move, rows)
        self._reader.acknowledge(move.end)
        return outcome

"""Mosquitto, an MQTT broker, for tests: on a free port, in a folder of the test."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.ports import free_port

UNPACKED = Path(__file__).parent.parent / ".cache/mosquitto/usr"
"""Where tests/fetch_tool.sh mosquitto puts it."""
START_S = 30.0


def tool(name: str) -> str:
    """Path of mosquitto, mosquitto_pub or mosquitto_passwd. Raises RuntimeError without it."""
    unpacked = next(UNPACKED.glob(f"*bin/{name}"), None)
    result = shutil.which(name) or (unpacked and str(unpacked))
    if not result:
        raise RuntimeError(f"no {name}: run tests/fetch_tool.sh mosquitto")
    return result


def environment() -> dict[str, str]:
    """Variables with which the unpacked programs find their libraries, and the shell finds them."""
    libraries = ":".join(map(str, UNPACKED.glob("lib/*-linux-gnu")))
    path = f"{os.environ['PATH']}:{UNPACKED / 'bin'}"
    return os.environ | {"LD_LIBRARY_PATH": libraries, "PATH": path}


class Mosquitto:
    """One broker process; `lines` are added to its configuration."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.port = free_port()
        self.place = f"127.0.0.1:{self.port}"
        folder.mkdir(exist_ok=True)
        config = folder / "mosquitto.conf"
        kept = ("persistence true", f"persistence_location {folder}/", "max_queued_messages 0")
        mine = (f"listener {self.port} 127.0.0.1", "user root", "log_type all", *kept)
        config.write_text("\n".join((*mine, *(lines or ("allow_anonymous true",)), "")))
        self._command = [tool("mosquitto"), "-c", str(config)]
        self.log = folder / "mosquitto.log"
        """With a line for each packet."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as said:
            self._process = subprocess.Popen(
                self._command, stdout=said, stderr=said, env=environment()
            )
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def stop(self) -> None:
        """SIGTERM: it stores its sessions."""
        self._end(kills=False)

    def kill(self) -> None:
        """kill -9."""
        self._end(kills=True)

    def _end(self, kills: bool) -> None:
        if self._process is not None:
            (self._process.kill if kills else self._process.terminate)()
            self._process.wait(timeout=30)
            self._process = None

    @contextmanager
    def client(self, name: str = "", clean: bool = True) -> Iterator[Client]:
        """A connected client."""
        client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        connected = Event()
        client.max_inflight_messages_set(1000)
        client.on_connect = lambda *_: connected.set()
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 0 if clean else 1000
        client.connect("127.0.0.1", self.port, clean_start=clean, properties=session)
        client.loop_start()
        try:
            assert connected.wait(START_S)
            yield client
        finally:
            client.disconnect()
            client.loop_stop()

    def subscribe(self, name: str, topics: str) -> None:
        """Make the session of a client id, as an earlier run does."""
        subscribed = Event()
        with self.client(name, clean=False) as client:
            client.on_subscribe = lambda *_: subscribed.set()
            client.subscribe(topics, qos=1)
            assert subscribed.wait(START_S)

    def send(
        self,
        topic: str,
        values: Iterable[bytes],
        qos: int = 1,
        retain: bool = False,
        **headers: str,
    ) -> None:
        """Publish messages, and wait until the broker has acknowledged them."""
        about = Properties(PacketTypes.PUBLISH)
        about.UserProperty = list(headers.items())
        with self.client() as client:
            sent = [client.publish(topic, one, qos, retain, about) for one in values]
            for one in sent:
                one.wait_for_publish(START_S)
                assert one.is_published()


@contextmanager
def running_mosquitto(folder: Path, *lines: str) -> Iterator[Mosquitto]:
    """A broker for the duration of a with block."""
    server = Mosquitto(folder, *lines)
    server.start()
    try:
        yield server
    finally:
        server.kill()

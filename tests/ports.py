"""A port for a server that cannot choose one itself."""

import os
import socket
from random import SystemRandom

_given = set[int]()


def free_port() -> int:
    """A free port for a server that is restarted on it, or that cannot choose one.

    Linux gives ports from 32768 up to clients, and to servers that ask for any: one of those could
    be taken before the server binds it. Other test processes get other ports. The port + 10,000,
    the bus of a Redis cluster, is free, too.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
    while True:
        port = 10_000 + 1000 * process + SystemRandom().randrange(1000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        if port not in _given:
            _given.add(port)
            return port

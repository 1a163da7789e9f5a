"""A port for a server that cannot choose one itself."""

import socket
from random import SystemRandom


def free_port() -> int:
    """A free port for a server that is restarted on it, or that cannot choose one.

    Linux gives ports from 32768 up to clients, and to servers that ask for any: one of those could
    be taken before the server binds it. The port + 10,000, the bus of a Redis cluster, is free,
    too.
    """
    while True:
        port = SystemRandom().randrange(10_000, 20_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port

"""Checks of a start that need no learners, so they come before kernels are compiled."""

import errno
import socket
import ssl

from dualstream.service.http.api_keys import KeyRing
from dualstream.service.journal.store_url import check_store
from dualstream.service.settings import Settings, check_binding

BACKLOG = 2048


def check_settings(settings: Settings) -> None:
    """Raise UnsafeBinding, or ValueError, if a server with these settings could never serve.

    `create_app` finds what is left: a wrong URL of Redis, traces without OpenTelemetry.
    """
    if settings.adopt and settings.workers > 1:
        raise ValueError("--adopt needs a single worker; start it without --workers")
    check_binding(settings)
    check_certificate(settings)
    check_store(settings.store)
    if settings.asks_for_keys:
        KeyRing(settings.keys, settings.keys_file)


def check_certificate(settings: Settings) -> None:
    """Raise ValueError if the TLS settings are incomplete or the files cannot be loaded."""
    if settings.ssl_certfile is None:
        if settings.ssl_keyfile is not None:
            raise ValueError("DUALSTREAM_SSL_KEYFILE is set without DUALSTREAM_SSL_CERTFILE")
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # An empty password: an encrypted key must not prompt in every worker.
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, lambda: b"")
    except OSError as wrong:
        files = " and ".join(map(str, filter(None, (settings.ssl_certfile, settings.ssl_keyfile))))
        raise ValueError(
            f"TLS cannot be served with {files}: {wrong.strerror or wrong}; give a certificate and"
            " its private key without a password, in PEM format"
        ) from None


def listen(settings: Settings) -> socket.socket:
    """The listening socket. Raises ValueError if the address cannot be bound."""
    host, port = settings.host, settings.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # `::` is every address of the machine, as 0.0.0.0 is every one of IPv4.
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both
        )
    except OSError as wrong:
        if wrong.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is in use; choose another with --port") from None
        raise ValueError(
            f"cannot bind --host {host} --port {port}: {str(wrong.strerror).partition(' (')[0]}"
        ) from None

"""nginx for tests: a balancer on a free port before some servers."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support import until

UNPACKED = Path(__file__).parents[3] / ".cache" / "nginx" / "usr" / "sbin" / "nginx"
"""Where tests/fetch_tool.sh nginx puts Debian's package."""
CONFIGURATION = """
daemon off; pid {place}/pid; error_log {place}/errors; worker_processes 1;
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_temp_path {place}; proxy_temp_path {place};
  fastcgi_temp_path {place}; uwsgi_temp_path {place}; scgi_temp_path {place};
  upstream dualstream {{ {servers} keepalive 16; }}
  server {{
    listen unix:{place}/http;
    client_max_body_size {max_body};
    location / {{
      proxy_pass http://dualstream;
      proxy_http_version 1.1; proxy_set_header Connection "";
      # A server that has just started answers 503. Rows have ids: another server may take them.
      proxy_next_upstream error timeout http_503 non_idempotent;
    }}
  }}
}}
"""


@contextmanager
def balancing(
    place: Path, ports: Sequence[int], max_body: str = "1m"
) -> Iterator[httpx.BaseTransport]:
    """A transport to nginx, which spreads requests over servers on these ports.

    Skips the test without nginx, fails it in CI.
    """
    program = shutil.which("nginx") or (str(UNPACKED) if UNPACKED.exists() else None)
    if program is None:
        missing = "no nginx: run tests/fetch_tool.sh nginx, or install it"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    servers = " ".join(f"server 127.0.0.1:{port} max_fails=0;" for port in ports)
    text = CONFIGURATION.format(place=place, servers=servers, max_body=max_body)
    (place / "nginx.conf").write_text(text)
    process = subprocess.Popen(
        [program, "-p", str(place), "-c", "nginx.conf", "-e", str(place / "errors")]
    )
    try:
        until(lambda: process.poll() is not None or is_listening(place / "http"))
        assert process.poll() is None
        with httpx.HTTPTransport(uds=str(place / "http")) as transport:
            yield transport
    finally:
        process.terminate()
        process.wait(timeout=60)


def is_listening(path: Path) -> bool:
    """Does a server accept connections? The file of its socket is there before."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        return True
    return False

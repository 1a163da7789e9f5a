"""Proxies of the environment: loopback does without them, and errors name them."""

import asyncio
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from dualstream.client import AsyncClient, BadInput, Client, Unreachable
from dualstream.client.proxies import proxy_of, shown
from dualstream.client.stores import stored_files
from dualstream.service.cli import app

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
ELSEWHERE = "http://dualstream.invalid:8000"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def proxy(monkeypatch) -> Iterator[list[str]]:
    """A proxy that forbids everything; the list has the first line of each request."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            requests.append(self.requestline)
            self.send_error(503 if "busy" in self.path else 403)

        do_GET = do_CONNECT = do_POST = answer

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://user:secret@127.0.0.1:{server.server_port}")
    yield requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_loopback_is_requested_without_a_proxy(proxy, shared_server, monkeypatch):
    for variables in ({}, {"ALL_PROXY": "socks5://127.0.0.1:1", "HTTP_PROXY": ""}):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with Client(shared_server.url, patience_s=0) as client:
            assert client.models() == []

        async def listed() -> object:
            async with AsyncClient(shared_server.url, patience_s=0) as client:
                return await client.models()

        assert asyncio.run(listed()) == []
        shown = CliRunner().invoke(app, ["models", "--url", shared_server.url, "--json"])
        assert shown.exit_code == 0, shown.output
    (file,) = stored_files(f"{shared_server.url}/livez")
    with file.opened(False) as opened:
        assert opened.read()
    assert proxy == []


def test_an_error_that_comes_through_a_proxy_names_it(proxy):
    with Client(ELSEWHERE, patience_s=0, api_key="k") as client:
        with pytest.raises(
            Unreachable, match=r"403.* through the proxy http://127.*NO_PROXY"
        ) as lost:
            client.models()
        assert "secret" not in str(lost.value)
        with pytest.raises(Unreachable, match=r"503 through the proxy http://127"):
            client.get("busy")
    assert proxy[0].startswith(f"GET {ELSEWHERE}/models")
    secure = ELSEWHERE.replace("http", "https")
    with Client(secure, patience_s=0) as client, pytest.raises(Unreachable) as lost:
        client.models()
    assert re.search(r"no answer: .* through the proxy http://127", str(lost.value))


@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        ("socks5://10.0.0.1:1080", "httpx.socks.*NO_PROXY"),
        ("ftp://10.0.0.1", "proxy URL"),
        ("http://10.0.0.1:port", "ALL_PROXY: Invalid port"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_an_error_with_advice(proxy, reason, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(BadInput, match=reason):
        Client(ELSEWHERE)
    with pytest.raises(BadInput, match=reason):
        AsyncClient(ELSEWHERE)
    ended = CliRunner().invoke(app, ["models", "--url", ELSEWHERE])
    assert ended.exit_code == 2
    assert re.search(reason, ended.output)


def test_no_proxy_and_the_scheme_decide(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "10.0.0.1:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example, 10.0.0.9, port.example:81, fd00::5")
    for url in (
        *("http://127.0.0.1:1", "http://127.1.2.3", "http://[::1]:8000", "http://localhost"),
        *("http://0.0.0.0:8000", "http://a.localhost"),
        *("http://inside.example", "http://a.inside.example:80", "http://10.0.0.9", ""),
        *("http://port.example:81", "http://[fd00::5]:8000"),
    ):
        assert proxy_of(url) is None, url
    for url in (
        "http://example.org",
        "http://10.0.0.8",
        "http://[2001:db8::1]:80",
        "http://notlocalhost",
        "http://port.example",
        "http://port.example:82",
    ):
        assert proxy_of(url) == "http://10.0.0.1:3128", url
    assert proxy_of("https://example.org") is None
    assert shown("http://user:secret@h:1/") == "http://h:1"

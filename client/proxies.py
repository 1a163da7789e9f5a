"""Proxies of the environment: HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, except for NO_PROXY.

A server on this machine is requested without a proxy: the proxy's own loopback is another machine.
"""

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import getproxies, proxy_bypass

import httpx

from dualstream.client.errors import BadInput

ADVICE = "list the server in NO_PROXY to reach it directly"


def proxy_of(url: str) -> str | None:
    """URL of the proxy of requests to `url`; None without one. Raises httpx.InvalidURL."""
    parsed = httpx.URL(url)
    if not parsed.host or is_local(parsed.host):
        return None
    # NO_PROXY lists hosts, also with a port.
    if proxy_bypass(parsed.host) or proxy_bypass(parsed.netloc.decode()):
        return None
    proxies = getproxies()
    proxy = proxies.get(parsed.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def is_local(host: str) -> bool:
    """Is this a name or an address of this machine's loopback?"""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def shown(proxy: str | None) -> str:
    """The URL of a proxy without its password; empty without a proxy. Raises BadInput."""
    if not proxy:
        return ""
    try:
        parsed = httpx.URL(proxy)
    except httpx.InvalidURL as wrong:
        raise BadInput(f"HTTP_PROXY, HTTPS_PROXY or ALL_PROXY: {wrong}") from None
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


@contextmanager
def valid_proxy() -> Iterator[None]:
    """Raises BadInput for a proxy of the environment that httpx cannot use."""
    try:
        yield
    except ImportError as wrong:  # socks5:// without its package
        if "SOCKS" not in str(wrong):
            raise
        reason = "the SOCKS proxy of the environment needs a package: pip install 'httpx[socks]'"
        raise BadInput(f"{reason}; or {ADVICE}") from None
    except ValueError as wrong:
        if "proxy" not in str(wrong):
            raise
        raise BadInput(f"HTTP_PROXY, HTTPS_PROXY or ALL_PROXY: {wrong}") from None

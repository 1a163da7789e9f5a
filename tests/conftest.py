"""Fixtures for all folders."""

import functools
import gc
import os
import signal
import ssl
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.utils
from hypothesis import settings

from tests.forked import fork_servers
from tests.fuzzing import examples
from tests.redis_server import RedisServer, redis_or_skip

# pytest explains failed assertions of helpers, too.
ROOMS = [path.name for path in Path(__file__).parent.iterdir() if path.is_dir()]
pytest.register_assert_rewrite("tests.support", *(f"tests.{room}" for room in ROOMS))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One redis-server per test process; a test may flush it."""
    with redis_or_skip() as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection: modules and tests live until the process ends.

    Freezing them keeps later collections, also those that tests ask for, from traversing them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# A suite started in the background ignores interrupts, and so do its child processes.
signal.signal(signal.SIGINT, signal.default_int_handler)

fork_servers()


@functools.cache
def _trusting_the_machine(_certificates: str | None) -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    """httpx's context, cached: httpx reads the machine's certificates at each `httpx.get`."""
    if verify is True and cert is None and trust_env:
        return _trusting_the_machine(os.environ.get("SSL_CERT_FILE"))
    return httpx.create_ssl_context(verify, cert, trust_env)


httpx._transports.default.create_ssl_context = _ssl_context

# A busy machine is no failure. By default httpx waits for 5 s.
for step in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, step, 60.0)

# In each asynchronous request httpcore searches the whole import path for sniffio, in vain.
if find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]
# redis-py reads its metadata for each connection.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)

# A busy machine is no failure. Tests without a number of examples have 100.
settings.register_profile("dualstream", examples(100))
settings.load_profile("dualstream")

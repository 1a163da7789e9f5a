"""An application in this process, on each store, once it is ready."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import FEATURES
from dualstream.service.features.feature import Feature
from dualstream.service.jobs.follower import Follower
from dualstream.service.models import registry
from dualstream.service.models.model import Model
from dualstream.service.replica.requests import ControlRequest
from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings
from tests.stores import store

__all__ = ["store"]

SPEC = {"algorithm": "dual_ascent", "loss": "hinge", "features": {"kind": "indexed", "dim": 5}}

Serve = Callable[..., TestClient]

# A busy machine is no failure: a replica has long to reach the seq that a test asks for.
registry.REACH_S = 60.0


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server on SQLite, which keeps its journals whole; who uses it deletes its models.

    It ends with the module: a start takes 0.1 s of CPU, and ten idle seconds as much.
    """
    store = f"sqlite:///{tmp_path_factory.mktemp('shared') / 'shared.db'}"
    # The history checker reads a journal from its beginning.
    with ServerProcess(store, ["--keep-records", "1000000"]) as running:
        yield running


def _settings_of(options: dict[str, object]) -> Settings:
    """Settings without environment variables: looking for those of all fields takes 2 ms of CPU."""
    settings = Settings.__new__(Settings)
    BaseModel.__init__(settings, **options)
    return settings


@contextmanager
def serving(folder: Path) -> Iterator[Serve]:
    with ExitStack() as running:

        def start(
            wait: bool = True, features: tuple[Feature, ...] = FEATURES, **options: object
        ) -> TestClient:
            options.setdefault("store", f"sqlite:///{folder / 'test.db'}")
            app = create_app(_settings_of(options), features=features)
            client = running.enter_context(TestClient(app))
            deadline = time.monotonic() + 60
            while wait and not app.startup.is_ready:
                assert time.monotonic() < deadline, app.startup.reason
                time.sleep(0.001)
            return client

        yield start


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts applications; `serve(store=..., snapshot_every=...)` gives a client of a new one."""
    with serving(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of an application that the tests of a module share: a start takes 20 ms of CPU."""
    with serving(tmp_path_factory.mktemp("shared")) as start:
        yield start()


@pytest.fixture
def no_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applications learn of the store by requests alone: a follower may do so at any moment."""

    async def nothing(_: Follower) -> None:
        pass

    monkeypatch.setattr(Follower, "run", nothing)


@pytest.fixture
def client(serve: Serve) -> TestClient:
    return serve()


@pytest.fixture
def model(client: TestClient) -> TestClient:
    """A client whose server holds the model `m` of dimension 5."""
    assert client.put("/models/m", json=SPEC).status_code == 201
    return client


def assert_problem(answer, status: int, slug: str) -> dict:
    """Every refusal has the one shape; returns the document."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    got = answer.json()
    assert got["type"].endswith("/" + slug), got
    assert got["status"] == status
    assert got["title"] and got["detail"] and got["error"] == got["detail"]
    assert got["instance"] == answer.request.url.path
    assert isinstance(got["errors"], list)
    for error in got["errors"]:
        assert {"index", "pointer", "reason"} <= set(error)
    if status == 503:
        assert int(answer.headers["retry-after"]) >= 1
    return got


@pytest.fixture
def overtaken(monkeypatch):
    """The next control comes behind what another worker does: it is refused where it stands."""
    true = Model.submit

    def by(action: Callable[[], Any]) -> None:
        left = [action]

        async def late(self: Model, request: Any) -> Any:
            if isinstance(request, ControlRequest) and left:
                done = await asyncio.to_thread(left.pop())
                assert done.status_code in (200, 202), done.text
            return await true(self, request)

        monkeypatch.setattr(Model, "submit", late)

    return by

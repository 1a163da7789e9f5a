"""`dualstream replay` and what it prints."""

import json
from typing import Any

from starlette.testclient import TestClient
from typer.testing import CliRunner

from dualstream.service import cli


def replayed(store: str, *args: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli.app, ["replay", "m", "--store", store, "--json", *args])
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.output)
    return result


def refused(store: str, *args: str, model: str = "m") -> str:
    done = CliRunner().invoke(cli.app, ["replay", model, "--store", store, *args])
    assert done.exit_code == 2, done.output
    return done.output


def state(client: TestClient, model: str = "m") -> tuple[str, dict[str, Any]]:
    """Its digest, and its metrics."""
    digest = client.get(f"/models/{model}?digest=true").json()["state_digest"]
    metrics = client.get(f"/models/{model}/metrics").json()
    return digest, {name: metrics[name] for name in ("since_start", "rolling", "fading", "drift")}


def got(result: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return result["state_digest"], {
        name: v for name, v in result["metrics"].items() if name != "rows"
    }

"""The command: its flags are the settings, and what it refuses it says."""

import inspect
import os
import signal
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from service import cli
from service.cli.settings_flags import read_settings
from service.demo.server_process import ServerProcess
from service.settings import Settings, UnsafeBinding, check_binding
from tests.service.documents import ROOT


def test_every_setting_is_a_flag_and_stands_in_the_docs():
    told = (ROOT / "docs" / "SETTINGS.md").read_text()
    flags = inspect.signature(cli.serving.serve).parameters
    assert set(flags) == set(Settings.model_fields)
    for name in Settings.model_fields:
        assert f"`{name.upper()}`" in told, name


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_other_hosts_are_refused_without_keys(host):
    with pytest.raises(UnsafeBinding, match="DUALSTREAM_ALLOW_ANONYMOUS=1"):
        check_binding(Settings(host=host))
    check_binding(Settings(host=host, allow_anonymous=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_keys(host):
    check_binding(Settings(host=host))


def test_unsafe_host_ends_the_command_with_that_sentence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "service", "serve", "--host", "0.0.0.0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        # HOME has the compiled kernels.
        env={"PYTHONPATH": str(ROOT), "HOME": os.environ["HOME"]},
        timeout=60,
    )
    assert done.returncode == 2
    assert "refusing to bind 0.0.0.0 without API keys" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_bad_values_are_named():
    done = CliRunner().invoke(cli.app, ["serve", "--port", "99999"])
    assert done.exit_code == 2 and "port" in done.output
    done = CliRunner().invoke(cli.app, ["serve", "--durability", "maybe"])
    assert done.exit_code == 2 and "durability" in done.output
    done = CliRunner().invoke(cli.app, ["serve", "--store", "mysql://x"])
    assert done.exit_code == 2 and "mysql" in done.output


def test_environment_is_read_and_flags_win(monkeypatch):
    monkeypatch.setenv("DUALSTREAM_SNAPSHOT_EVERY", "7")
    monkeypatch.setenv("DUALSTREAM_PORT", "1234")
    assert Settings().snapshot_every == 7
    assert read_settings({"port": 99}).port == 99
    assert read_settings({"port": 99}).snapshot_every == 7


def test_server_says_where_it_is_and_what_it_promises(tmp_path):
    store = f"sqlite:///{tmp_path / 'said.db'}"
    with ServerProcess(store, ["--durability", "full"]) as server:
        assert server.said[0] == f"Dualstream listens on {server.url}"
        assert server.said[1] == f"ready · store {store} · durability full"
        answer = httpx.get(f"{server.url}/readyz?verbose").json()
        assert answer["durability"] == "full" and answer["store"] == store
    # uvicorn finishes what is under way, then ends by the signal that it was sent.
    assert server.process.returncode == -signal.SIGTERM


def test_durability_that_the_store_lacks_is_not_ready(tmp_path, redis_server):
    with ServerProcess(redis_server.url, ["--durability", "always"], wait=False) as server:
        server.wait_until("Dualstream listens")
        reason = wait_for_reason(server.url)
        assert "always" in reason
        refused = httpx.get(f"{server.url}/models")
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/livez").status_code == 200


def wait_for_reason(url: str) -> str:
    for _ in range(200):
        answer = httpx.get(f"{url}/readyz")
        assert answer.status_code == 503
        if answer.json()["reason"] != "starting":
            return answer.json()["reason"]
    raise AssertionError("no reason was given")


def test_password_of_the_store_is_never_shown():
    from service.api.health import without_password

    assert without_password("redis://:secret@host:1/0") == "redis://:***@host:1/0"
    assert without_password("redis://user:secret@host/0") == "redis://user:***@host/0"
    assert without_password("sqlite:///a.db") == "sqlite:///a.db"

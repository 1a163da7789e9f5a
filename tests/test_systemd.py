"""The units of systemd: valid, and of one piece with the settings and the commands."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dualstream.service import cli
from dualstream.service.cli.consume import STOP_S
from dualstream.service.server.workers import MAX_HANG_S
from dualstream.service.settings import Settings

ROOT = Path(__file__).parent.parent
UNITS = ROOT / "deploy" / "systemd"
SERVER, CONSUMER = "dualstream.service", "dualstream-consume@.service"


def options(unit: str) -> dict[str, list[str]]:
    """Name -> values of each option, in order."""
    result: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", (UNITS / unit).read_text(), re.M):
        result.setdefault(name, []).append(value)
    return result


def command(unit: str) -> tuple[typer.core.TyperCommand, list[str]]:
    [line] = options(unit)["ExecStart"]
    program, name, *arguments = line.split()
    assert program == "/opt/dualstream/bin/dualstream"
    _, result, _ = typer.main.get_group(cli.app).resolve_command(None, [name])
    return result, arguments


def test_units_are_valid(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is a part of systemd, which a container may lack")
    program = Path(sys.executable).parent / "dualstream"
    for unit in (SERVER, CONSUMER):
        text = (UNITS / unit).read_text().replace("/opt/dualstream/bin/dualstream", str(program))
        path = tmp_path / unit.replace("@.", "@clicks.")
        path.write_text(text.replace("User=dualstream", "User=root"))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True
        )
        assert done.returncode == 0 and str(tmp_path) not in done.stderr, done.stderr


def test_the_server_gets_settings_and_time_to_stop():
    _, arguments = command(SERVER)
    assert arguments == []
    variables = dict(value.split("=", 1) for value in options(SERVER)["Environment"])
    assert variables.pop("DUALSTREAM_CACHE_DIR") == "/var/cache/dualstream"
    settings = Settings(
        **{name.removeprefix("DUALSTREAM_").lower(): value for name, value in variables.items()}
    )
    assert settings.store == "sqlite:////var/lib/dualstream/dualstream.db"
    [stop_s] = options(SERVER)["TimeoutStopSec"]
    assert int(stop_s) > settings.drain_s + settings.stop_timeout_s + MAX_HANG_S
    assert options(SERVER)["KillMode"] == ["mixed"]


def test_the_consumer_has_options_of_its_command():
    consume, arguments = command(CONSUMER)
    variables = {"${SOURCE}": ["kafka://b:1/t"], "${MODEL}": ["m"], "$OPTIONS": ["--until-end"]}
    words = [word for one in arguments for word in variables.get(one, [one])]
    parsed = consume.make_context("consume", words).params
    assert (parsed["source"], parsed["model"], parsed["until_end"]) == ("kafka://b:1/t", "m", True)
    [stop_s] = options(CONSUMER)["TimeoutStopSec"]
    assert int(stop_s) > STOP_S

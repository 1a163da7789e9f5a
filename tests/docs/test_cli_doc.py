"""docs/reference/cli.md has every command, and its commands run as written."""

import re
import shlex
import subprocess

import pytest
import typer
from typer.testing import CliRunner, Result

from dualstream.service.cli import app
from dualstream.service.cli.commands import COMMANDS as TABLE
from dualstream.service.cli.demo.server_process import ServerProcess
from tests.docs.documents import ROOT, session

CLI = (ROOT / "docs/reference/cli.md").read_text()
GROUP = typer.main.get_group(app)
COMMANDS = {name: GROUP.resolve_command(None, [name])[1] for name in TABLE}
# test_cli.py runs `serve`, test_show.py `resume`, and the
# guides of Kafka, Redis streams, NATS and MQTT `consume`.
ELSEWHERE = {"serve", "resume", "consume"}


def test_every_command_has_its_section_its_help_and_its_example():
    assert re.findall(r"^## (\S+)$", CLI, re.MULTILINE) == list(TABLE)
    for name, command in COMMANDS.items():
        assert command.help.startswith(f"{TABLE[name][1]}\n\n"), name
        assert f"dualstream {name}" in command.help, name
        flags = [flag for parameter in command.params for flag in parameter.opts]
        assert ("--json" in flags) == (name not in ("serve", "dump", "restore")), name
    codes = re.findall(r"^\| (\d+) \| (\w+)", CLI, re.MULTILINE)
    assert len(codes) == 7 and all(f"{code} {means}" in app.info.epilog for code, means in codes)


def test_the_commands_run_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("DUALSTREAM_STORE", "sqlite:///dualstream.db")
    ran = []
    with ServerProcess("sqlite:///dualstream.db") as server:
        monkeypatch.setenv("DUALSTREAM_URL", server.url)
        for script in statements(session(CLI)):
            before, result, line = script.rpartition("dualstream ")
            if not result:
                subprocess.run(["bash", "-e", "-c", script], check=True)
                continue
            done = run_line(before.strip().removesuffix("|"), line)
            assert done.exit_code == 0, (script, done.output)
            ran.append(line.split()[0])
    assert set(ran) == set(COMMANDS) - ELSEWHERE
    scores = (tmp_path / "scores.csv").read_text().splitlines()
    assert scores[0] == "score,label,probability" and len(scores) == 3


def statements(text: str) -> list[str]:
    """The commands of a session; what is written to a file by `<<'END'` belongs to its command."""
    result = re.findall(r"^.*<<'END'\n(?:.*\n)*?END$|^.+$", text, re.MULTILINE)
    assert len(result) > 10
    return result


def run_line(before: str, line: str) -> Result:
    """Run `dualstream LINE` in this process, behind a pipe; its output goes to the file after >."""
    inputs = subprocess.run(["bash", "-c", before], capture_output=True, check=True).stdout
    line, _, position = line.partition(" > ")
    done = CliRunner().invoke(app, shlex.split(line), input=inputs)
    if position:
        with open(position, "w") as file:
            file.write(done.stdout)
    return done


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_models(shell, tmp_path):
    words = {"COMP_WORDS": "dualstream cert", "COMP_CWORD": "1"}
    words |= {"_TYPER_COMPLETE_ARGS": "dualstream cert", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = CliRunner().invoke(
        app, [], prog_name="dualstream", env={"_DUALSTREAM_COMPLETE": f"complete_{shell}", **words}
    )
    assert "certificate" in done.output and "create" not in done.output

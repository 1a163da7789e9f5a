"""The commands in README.md and docs/, run as written."""

import json
import os
import re
import sys
from pathlib import Path

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.shell import run_script

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
_BLOCK = re.compile(r"^(<!-- not run: [^>]+ -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[bool, str, str]]:
    """Of each fenced block: whether it is to be run, its language, and its lines."""
    return [(not why, language, lines) for why, language, lines in _BLOCK.findall(text)]


def session(text: str) -> str:
    """The commands of a document, one after the other, but for those marked `not run`."""
    return "".join(lines for is_run, language, lines in blocks(text) if is_run and language == "sh")


def program_of(guide: str) -> str:
    """The Python blocks of a guide, one after the other."""
    text = DOCUMENTS[f"docs/guides/{guide}.md"]
    return "".join(lines for _, language, lines in blocks(text) if language == "python")


def assert_printed(program: str, output: str) -> None:
    """Each comment behind a `print` is the beginning of a line of the output, in their order."""
    lines = iter(output.splitlines())
    for expected in re.findall(r"print\(.*\)  # (.*)", program):
        beginning = expected.removesuffix("...")
        assert any(line.startswith(beginning) for line in lines), (expected, output)


class Shell:
    """A server on a store of its own, and commands that speak to it in the folder of a document."""

    def __init__(self, folder: Path) -> None:
        self.store = f"sqlite:///{folder / 'documents.db'}"
        self.server = ServerProcess(self.store)

    def run(self, script: str, folder: Path) -> tuple[list[dict], str]:
        """The objects that came back, and all that was said. Models stay: pages share none."""
        script = script.replace("curl -s", "curl -sf -w '\\n'")
        script = script.replace("localhost:8000", self.server.url.removeprefix("http://"))
        env = {"DUALSTREAM_STORE": self.store, "DUALSTREAM_URL": self.server.url}
        env["PYTHONPATH"] = str(ROOT)
        env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = run_script(script, folder, env, ("-e", "-o", "pipefail"))
        assert done.returncode == 0, done.stdout + done.stderr
        got = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
        return got, done.stdout

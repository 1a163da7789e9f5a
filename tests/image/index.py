"""What pip is told here, for the build alone: a secret of its configuration, mounts of files."""

import re
import secrets
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What has to do with where packages come from; the rest of a configuration is this machine's own.
OPTIONS = (
    *("index-url", "extra-index-url", "find-links", "no-index", "trusted-host"),
    *("cert", "client-cert", "proxy", "timeout", "default-timeout"),
)


def pip_configuration() -> tuple[str, str]:
    """A pip.conf that says what pip's files and variables say here, and a mark that is in it."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    said: dict[str, str] = {}
    # Variables come after files of the same name in force: sorted() puts ":env:" first.
    for line in sorted(listed.stdout.splitlines(), reverse=True):
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        if option in OPTIONS:
            said[option] = value.strip("'\"").replace("\\n", " ")
    mark = secrets.token_hex(16)
    lines = [f"# {mark}", "[global]", *(f"{option} = {value}" for option, value in said.items())]
    return "\n".join(lines) + "\n", mark


def mounts(configuration: str) -> list[str]:
    """The files and folders of this machine that it names, to be seen by the build, read-only."""
    named = re.findall(r"(?:(?<=\s)/|file:///)\S+", configuration)
    paths = {Path(unquote(urlsplit(name).path)) for name in named}
    # An index has its files beside the folder of its pages.
    paths = {path.parent if path.name == "simple" else path for path in paths}
    found = {path.parent if path.is_file() else path for path in paths if path.exists()}
    return [f"{path}:{path}:ro" for path in sorted(found)]

"""pip configuration for the build alone: as a secret, and mounts of its files."""

import re
import secrets
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Options about the source of packages; other options stay on this machine.
OPTIONS = (
    *("index-url", "extra-index-url", "find-links", "no-index", "trusted-host"),
    *("cert", "client-cert", "proxy", "timeout", "default-timeout"),
)


def pip_configuration() -> tuple[str, str]:
    """A pip.conf with this machine's pip settings, and a marker in it."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    said: dict[str, str] = {}
    # Variables override files: sorted() puts ":env:" first, reversed it is last.
    for line in sorted(listed.stdout.splitlines(), reverse=True):
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        if option in OPTIONS:
            said[option] = value.strip("'\"").replace("\\n", " ")
    mark = secrets.token_hex(16)
    lines = [f"# {mark}", "[global]", *(f"{option} = {value}" for option, value in said.items())]
    return "\n".join(lines) + "\n", mark


def mounts(configuration: str) -> list[str]:
    """Files and folders of this machine that the configuration names, as read-only mounts."""
    named = re.findall(r"(?:(?<=\s)/|file:///)\S+", configuration)
    paths = {Path(unquote(urlsplit(name).path)) for name in named}
    # The files of an index are next to the folder of its pages.
    paths = {path.parent if path.name == "simple" else path for path in paths}
    result = {path.parent if path.is_file() else path for path in paths if path.exists()}
    return [f"{path}:{path}:ro" for path in sorted(result)]

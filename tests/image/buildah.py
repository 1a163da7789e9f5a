"""buildah with a store of its own: builds and runs images without an engine or a daemon.

Layers are full copies (`vfs`) and commands run in a chroot, so buildah needs root, but no overlay
file system and no right to create containers.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STORE = Path(__file__).parent.parent.parent / ".cache" / "image"
COMMAND = (
    "buildah",
    *("--root", str(STORE / "images")),
    *("--runroot", str(STORE / "run")),
    *("--storage-driver", "vfs"),
)


def buildah(*arguments: str) -> str:
    """Standard output of buildah. Raises CalledProcessError with the errors shown."""
    done = subprocess.run([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def has_image(name: str) -> bool:
    return (
        subprocess.run([*COMMAND, "inspect", "--type=image", name], capture_output=True).returncode
        == 0
    )


def described(image: str) -> dict[str, Any]:
    """The image in Docker's format, with its configuration and history."""
    return json.loads(buildah("inspect", "--type=image", image))


def run_command(
    container: str, command: Sequence[str], variables: Mapping[str, str] | None = None
) -> list[str]:
    """Command line that runs `command` in a container as the image's user."""
    inputs = [f"--env={name}={value}" for name, value in (variables or {}).items()]
    return [*COMMAND, "run", "--isolation=chroot", *inputs, container, "--", *command]

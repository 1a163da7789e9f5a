"""Server subprocess on a free port, for the demo, the tests and the benchmarks."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Self


def start(
    command: Sequence[str], stderr: IO[str] | int | None, env: Mapping[str, str] | None
) -> "subprocess.Popen[str]":
    """Start the server process with its standard output in a pipe."""
    # Runs this Python and package without a shell; flags come from the caller only.
    return subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env
    )


class ServerProcess:
    """Runs `dualstream serve` and waits until it is ready.

    with ServerProcess("sqlite:///x.db") as server: httpx.get(server.url + "/livez")

    Tests may serve another `module`. Raises RuntimeError if the process ends before it is ready;
    `said` has the lines that it printed.
    """

    def __init__(
        self,
        store: str,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        stderr: IO[str] | int | None = None,
        wait: bool = True,
        module: str = "dualstream.service",
    ) -> None:
        command = [*prefix, sys.executable, "-m", module, "serve", "--port", "0"]
        # A client that stops this process needs no time to find another server.
        command += ["--drain-s", "0", "--store", store, *flags]
        self.said: list[str] = []
        self.url = ""
        self.process = start(command, stderr, _environment(env))
        if wait:
            try:
                self.wait_until("ready")
            except BaseException:
                self.kill()
                raise

    def wait_until(self, beginning: str) -> None:
        """Read lines of the server until one begins with `beginning`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())
            if " listens on http" in line:
                self.url = line.split()[-1]
            if line.startswith(beginning):
                return
        raise RuntimeError(f"the server ended before it printed {beginning!r}: {self.said}")

    def kill(self) -> None:
        """Send SIGKILL: no handler runs, nothing is flushed."""
        self.process.kill()
        self._end()

    def stop(self) -> None:
        """Send SIGTERM: the server finishes running requests and exits."""
        self.process.terminate()
        self._end()

    def _end(self) -> None:
        self.process.wait(timeout=60)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.stop()
        else:
            self._end()


def _environment(extra: Mapping[str, str] | None) -> dict[str, str] | None:
    # The child inherits this process's environment; `extra` overrides it.
    return None if extra is None else {**os.environ, **extra}  # noqa: TID251

"""Servers and commands for tests, forked from a process that has imported their modules.

Such a server is a process of its own, with a pid that can be killed, like that of `dualstream
serve`. It skips the imports, which took a third of the suite's time, and so do its workers.
Tests that pass a `prefix` start servers as users do, and `tests/test_packaging.py` and
`test_an_output_that_cannot_be_written_is_an_error` start commands as users do.
"""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from typing import IO

from dualstream.service.cli.demo import server_process

forks = get_context("forkserver")
COMMAND = [sys.executable, "-m", "dualstream.service", "serve"]
PRELOADED = [
    "dualstream.service.server.workers",
    "dualstream.service.cli",
    "dualstream.service.journal.sqlite",
    "dualstream.service.journal.redis",
    "dualstream.solvers.online.dual_ascent.learner",
    "dualstream.solvers.portfolio.learner",
    *(
        f"dualstream.solvers.nonlinear.{name}"
        for name in ("boosted", "neighbours", "net", "splines")
    ),
]
# Variables that are read during imports have no effect on a forked server.
READ_EARLY = ("NUMBA_", "PYTHON", "DUALSTREAM_CPU", "DUALSTREAM_CACHE_DIR")


class ForkedProcess:
    """The part of `subprocess.Popen` that tests use, for a forked command.

    args     `python -m MODULE COMMAND ...`
    inputs   descriptors that it reads, by their numbers in the process
    """

    def __init__(
        self,
        args: Sequence[str],
        stdout: IO[bytes] | int = subprocess.PIPE,
        stderr: IO[bytes] | IO[str] | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        inputs: Mapping[int, int] | None = None,
    ) -> None:
        self.args = args
        out, self.stdout = _output(stdout)
        err, self.stderr = _output(stderr)
        files = {number: Connection(os.dup(file)) for number, file in (inputs or {}).items()}
        with out, err:
            environment = dict(os.environ if env is None else env)
            descriptors = {1: out, 2: err, **files}
            arguments = (args[2], list(args[3:]), environment, cwd or os.getcwd(), descriptors)
            # Ends with this process if a test leaves it running.
            self._process = forks.Process(target=_run, args=arguments, daemon=True)
            self._process.start()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The rest of its output and errors. A process that takes longer is killed."""
        with ThreadPoolExecutor() as reading:
            said, errors = (reading.submit(_rest_of, one) for one in (self.stdout, self.stderr))
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return said.result(), errors.result()

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def fork_servers() -> None:
    """Let `ServerProcess` fork servers from now on, where a plain command would start them."""
    forks.set_forkserver_preload(PRELOADED)
    started_by_command = server_process.start

    def start(
        command: Sequence[str], stderr: IO[str] | int | None, env: Mapping[str, str] | None
    ) -> "subprocess.Popen[str] | ForkedProcess":
        program, dash, module, what = command[: len(COMMAND)]
        is_known = [program, dash, what] == [*COMMAND[:2], "serve"]
        if not is_known or any(name.startswith(READ_EARLY) for name in _changed(env)):
            return started_by_command(command, stderr, env)
        return ForkedProcess(command, stderr=stderr, env=env)

    server_process.start = start


def _changed(env: Mapping[str, str] | None) -> list[str]:
    """Names of the variables that differ from this process's environment."""
    if env is None:
        return []
    return [name for name in {*env, *os.environ} if env.get(name) != os.environ.get(name)]


def _output(given: IO[bytes] | IO[str] | int | None) -> tuple[Connection, IO[str] | None]:
    """Where the process writes, as Popen has it, and the other end of a pipe."""
    if given == subprocess.PIPE:
        reads, writes = os.pipe()
        return Connection(writes, readable=False), open(reads, encoding="utf-8")
    if given == subprocess.DEVNULL:
        return Connection(os.open(os.devnull, os.O_WRONLY), readable=False), None
    descriptor = 2 if given is None else given if isinstance(given, int) else given.fileno()
    return Connection(os.dup(descriptor), readable=False), None


def _rest_of(pipe: IO[str] | None) -> str:
    if pipe is None or pipe.closed:
        return ""
    with pipe:
        return pipe.read()


def _run(
    module: str,
    arguments: list[str],
    env: dict[str, str],
    folder: str,
    descriptors: dict[int, Connection],
) -> None:
    """The forked process: runs `dualstream` after its imports."""
    from dualstream.service.cli import app
    from dualstream.solvers import jit

    # `make test` compiles all kernels. Without it, no server of a test starts to do so.
    jit.is_complete = lambda: True
    # What was imported lives as long as the process: traversing it took 0.25 s per process.
    gc.freeze()
    for descriptor, connection in descriptors.items():
        os.dup2(connection.fileno(), descriptor)
        connection.close()
    if 0 in descriptors:
        sys.stdin = open(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` of the tests ignores it
    # Daemons may have no children; a server has workers.
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    sys.argv = ["dualstream", *arguments]
    if module != COMMAND[2]:
        import_module(module)  # plants faults, also in its workers: they are forked with it
    app()

"""Compile kernels ahead of time, in one process per core, and copy them for a wheel.

    python -m dualstream.service.server.compile_kernels [--copy-to FOLDER]

Importing a module compiles those of its kernels that are in no cache, one after another: more than
a minute for all of them. numba compiles in one thread, so several processes fill one cache. A
command that meets kernels in no cache starts such processes for those of a server and of a model
without options (`compiled_by_processes`). A server that is ready has the others compiled by one
process (`Background`).
"""

import asyncio
import fcntl
import importlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rich.console import Console

log = logging.getLogger("dualstream.kernels")

PACKAGES = ("dualstream.solvers", "dualstream.service")
PATIENCE_S = 2.0
"""Time for which a process compiles what it imports itself. A few kernels take less."""
LOG_EVERY_S = 5.0
POLL_S = 1.0
MIN_SHARE = 0.05
"""Share of the work after which the rest of the time is estimated."""
PARSERS = "dualstream.solvers.rows.text."
"""Modules that parse. They import each other: two processes would compile them twice."""
PARSER_WORK = 2
"""Work of a byte of a parser's source, in bytes of other kernels, as measured."""
SERVER = (
    "import dualstream.service.server.workers, dualstream.solvers as solvers;"
    "solvers.make_learner({})"
)
"""Imports what a server and a model without options need."""
NICE = 19
_KERNEL = re.compile(rb"^@(jit\.)?kernel\b", re.MULTILINE)


class Kernels(NamedTuple):
    """Kernels of a module.

    work    size of the module in bytes, twice for a parser
    number  of its kernels
    """

    work: int
    number: int


def folder_of(package: str) -> Path:
    """The folder of a package, without importing it."""
    if package in sys.modules:
        return Path(sys.modules[package].__path__[0])
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None, package
    return Path(spec.submodule_search_locations[0])


def kernel_modules() -> dict[str, Kernels]:
    """Modules with kernels."""
    modules = {}
    for package in PACKAGES:
        folder = folder_of(package)
        for path in sorted(folder.rglob("*.py")):
            count = len(_KERNEL.findall(path.read_bytes()))
            if count:
                name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
                work = PARSER_WORK if name.startswith(PARSERS) else 1
                modules[name] = Kernels(path.stat().st_size * work, count)
    return modules


def imported_by(program: str) -> dict[str, Kernels]:
    """Modules with kernels that a program imports, found out in a process that compiles nothing."""
    names = subprocess.run(  # noqa: S603 - this interpreter, with a program of this file
        [*_python(), "-c", f"import sys; {program}; print(*sys.modules)"],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},  # noqa: TID251
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()
    return {name: kernels for name, kernels in kernel_modules().items() if name in names}


def shares(modules: Mapping[str, Kernels], jobs: int) -> list[list[str]]:
    """Partition the modules into `jobs` parts of similar work, largest first; parsers are one."""
    parsers = [name for name in modules if name.startswith(PARSERS)]
    units = [parsers] if parsers else []
    units += [[name] for name in modules if not name.startswith(PARSERS)]
    works = [(sum(modules[name].work for name in unit), unit) for unit in units]
    parts: list[list[str]] = [[] for _ in range(jobs)]
    totals = [0] * jobs
    for work, unit in sorted(works, key=lambda one: (-one[0], one[1])):
        least = totals.index(min(totals))
        parts[least] += unit
        totals[least] += work
    return [part for part in parts if part]


# -- progress ------------------------------------------------------------------------------------


class Progress:
    """Progress of a compilation: kernels that are done, and an estimate of the time left.

    show  called with the share of the work that is done, and a line
    """

    def __init__(
        self, modules: Mapping[str, Kernels], show: Callable[[float, str], None], how_often: str
    ) -> None:
        self._modules, self._show, self._how_often = modules, show, how_often
        self._total = sum(kernels.number for kernels in modules.values())
        self._work = sum(kernels.work for kernels in modules.values())
        self._done: set[str] = set()
        self._work_done = 0.0
        self._began = time.monotonic()
        self._say()

    def made(self, name: str) -> None:
        """Count a kernel; several processes may make it."""
        kernels = self._modules.get(name.rpartition(".")[0])
        if kernels is not None and name not in self._done:
            self._done.add(name)
            self._work_done += kernels.work / kernels.number
            self._say()

    def _say(self) -> None:
        share = self._work_done / self._work
        left = ""
        if share >= MIN_SHARE:
            left_s = (time.monotonic() - self._began) * (1.0 / share - 1.0)
            left = f", about {5 * max(1, round(left_s / 5))} s"
        self._show(
            share, f"compiling {len(self._done)} of {self._total} kernels{left}, {self._how_often}"
        )


@contextmanager
def _display(console: Console) -> Iterator[Callable[[float, str], None]]:
    """A progress bar in a terminal, otherwise a log line every few seconds."""
    if not console.is_terminal:
        last = -LOG_EVERY_S

        def log_some(share: float, line: str) -> None:
            nonlocal last
            if time.monotonic() - last >= LOG_EVERY_S:
                last = time.monotonic()
                log.info(line)

        yield log_some
        return
    from rich.progress import BarColumn, Progress as Bar, TextColumn

    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, line: bar.update(task, completed=share, description=line)


# -- processes -----------------------------------------------------------------------------------


def fill(modules: Mapping[str, Kernels], console: Console) -> bool:
    """Compile these modules in one process per core. Returns whether all processes did."""
    began = time.monotonic()
    reading, writing = os.pipe()
    parts = shares(modules, len(os.sched_getaffinity(0)))
    processes = [_start("--modules", *part, stdout=writing) for part in parts]
    os.close(writing)
    try:
        with _display(console) as show, open(reading) as names:
            progress = Progress(modules, show, "once")
            for name in names:
                progress.made(name.strip())
        are_done = all([process.wait() == 0 for process in processes])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if are_done:
        log.info("compiled kernels in %.0f s", time.monotonic() - began)
    return are_done


@contextmanager
def compiled_by_processes(console: Console) -> Iterator[None]:
    """Context manager around imports: many missing kernels are compiled by several processes.

    It shows the progress. If the cache cannot be written, this process compiles all of them.
    """
    jit = _jit_alone()
    first_missed: float | None = None

    def on_missing(name: str) -> None:
        nonlocal first_missed
        first_missed = first_missed or time.monotonic()
        if time.monotonic() - first_missed < PATIENCE_S:
            return
        jit.on_missing = jit.no_action
        modules = imported_by(SERVER) or kernel_modules()
        with suppress(OSError):
            jit.open_lock().close()
            if not jit.cannot_write():
                fill(modules, console)
                return
        show = stack.enter_context(_display(console))
        jit.on_made = Progress(modules, show, "at each start").made
        for done in jit.compiled_signatures():
            jit.on_made(done)

    with ExitStack() as stack:
        jit.on_missing = on_missing
        try:
            yield
        finally:
            jit.on_missing = jit.on_made = jit.no_action


def log_compilation() -> None:
    """Log it from now on when kernels that are in no cache are compiled, once per module."""
    from dualstream.solvers import jit

    logged: set[str] = set()

    def on_missing(name: str) -> None:
        module = name.rpartition(".")[0]
        if module not in logged:
            logged.add(module)
            log.info("compiling kernels, once, while requests that need them wait: %s", module)

    jit.on_missing = on_missing


class Background:
    """A process that compiles the kernels that no model has needed yet, while the server runs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start the process if kernels are missing and no other server has such a process."""
        from dualstream.solvers import jit

        if jit.is_complete():
            return
        try:
            lock = jit.open_lock()
        except OSError as error:
            log.info("kernels of other algorithms are compiled when a model needs them: %s", error)
            return
        with lock:
            try:
                # The process has it until it ends.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self._process = _start(
                *("--rest",),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[lock.fileno()],
            )
        log.info("compiling the kernels of other algorithms in a process of its own, once")

    def is_running(self) -> bool:
        """Does the process run? Logs its end."""
        if self._process is None:
            return False
        code = self._process.poll()
        if code is None:
            return True
        self.end()
        if code == 0:
            log.info("all kernels are compiled")
        else:
            log.warning("kernels of other algorithms are compiled when a model needs them")
        return False

    def end(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    async def run(self) -> None:
        """Compile what is missing. Cancelling it ends the process."""
        try:
            await asyncio.to_thread(self.begin)
            while self.is_running():
                await asyncio.sleep(POLL_S)
        finally:
            self.end()


def _python() -> list[str]:
    return [sys.executable, *(["-P"] if sys.flags.safe_path else [])]


def _start(*arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process of this module."""
    command = [*_python(), "-m", "dualstream.service.server.compile_kernels", *arguments]
    return subprocess.Popen(command, **options)  # noqa: S603 - this interpreter, with module names


# -- inside a process ----------------------------------------------------------------------------


def _jit_alone() -> Any:
    """`solvers.jit`, without an import of its package, which compiles kernels."""
    name = "dualstream.solvers"
    if name in sys.modules:
        return importlib.import_module(f"{name}.jit")
    _put_empty_package(name)
    try:
        return importlib.import_module(f"{name}.jit")
    finally:
        del sys.modules[name]


def _put_empty_package(name: str) -> None:
    package = ModuleType(name)
    package.__path__ = [str(folder_of(name))]
    sys.modules[name] = package


def compile_here(modules: Sequence[str]) -> None:
    """Import only these modules and what they need. The process is useless for anything else
    after it.

    The import of their packages would compile everything in its own order, in every process. Empty
    packages take their place.
    """
    for name in ("dualstream.solvers", "dualstream.solvers.rows.text"):
        _put_empty_package(name)
    for name in modules:
        importlib.import_module(name)


def _run_share(modules: Sequence[str]) -> int:
    """The main function of a process that compiles modules. It prints the names of kernels.

    It ends without its parent, and when the cache cannot be written. The parent logs errors of the
    cache.
    """
    jit = _jit_alone()
    log.disabled = True
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def on_made(name: str) -> None:
        if jit.cannot_write():
            sys.exit(1)
        print(name, flush=True)  # noqa: T201

    jit.on_made = on_made
    compile_here(modules)
    return 0


def _run_rest() -> int:
    """The main function of the process that compiles everything while a server runs."""
    os.nice(NICE)

    def end_with_server() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=end_with_server, name="parent-watcher", daemon=True).start()
    _run_share(list(kernel_modules()))
    _jit_alone().mark_complete()
    return 0


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    if arguments[:1] == ["--modules"]:
        return _run_share(arguments[1:])
    if arguments == ["--rest"]:
        return _run_rest()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    jit = _jit_alone()
    try:
        jit.open_lock().close()
        if not jit.is_complete():
            if not fill(kernel_modules(), Console(stderr=True)):
                raise OSError("not all kernels could be compiled and written")
            jit.mark_complete()
        if arguments[:1] == ["--copy-to"]:
            compile_here(list(kernel_modules()))
            jit.copy_kernels(Path(arguments[1]))
    except OSError as error:
        log.error("the kernel cache is incomplete: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Compile all kernels ahead of time, in one process per core.

    python -m dualstream.service.server.compile_kernels

Importing a module compiles those of its kernels that are in no cache, one after another: more than
a minute for all of them. numba compiles in one thread, so this command starts several processes
that fill the same cache. With module names as arguments, it compiles these modules in this
process.
"""

import importlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PACKAGES = ("dualstream.solvers", "dualstream.service")
NOTICE_AFTER_S = 2.0
"""Imports with a full kernel cache take less."""
PARSERS = "dualstream.solvers.rows.text."
"""Modules that parse. They import each other: two processes would compile them twice."""
PARSER_WORK = 2
"""Work of a byte of a parser's source, in bytes of other kernels, as measured."""
COMPILED_LAST = ("dualstream.solvers.rows.text.flat.csv", "dualstream.solvers.rows.text.flat.json")
"""Half of the work of the server's imports, and its last part."""
FIRST_MODEL = (
    "dualstream.solvers.online.table_learner",
    "dualstream.solvers.portfolio.weighting_kernels",
    "dualstream.solvers.portfolio.fused_kernels",
    "dualstream.solvers.portfolio.pairs",
    "dualstream.solvers.portfolio.wild_labels",
    "dualstream.solvers.portfolio.late_kernels",
    "dualstream.solvers.nonlinear.lags",
    "dualstream.solvers.nonlinear.boosted_kernels",
    "dualstream.solvers.nonlinear.growth_kernels",
    "dualstream.solvers.nonlinear.net_kernels",
    "dualstream.solvers.nonlinear.neighbours_kernels",
    "dualstream.solvers.nonlinear.softmax",
    "dualstream.solvers.nonlinear.splines_kernels",
    "dualstream.solvers.portfolio.retained_rows",
)
"""Modules that a model without options needs and the server does not import before it is ready."""


def folder_of(package: str) -> Path:
    """The folder of a package, without importing it."""
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None, package
    return Path(spec.submodule_search_locations[0])


def kernel_modules() -> dict[str, int]:
    """Modules with kernels, and the work of each: its size in bytes, twice for a parser."""
    modules = {}
    for package in PACKAGES:
        folder = folder_of(package)
        for path in sorted(folder.rglob("*.py")):
            if re.search(rb"^@(jit\.)?kernel\b", path.read_bytes(), re.MULTILINE):
                name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
                work = PARSER_WORK if name.startswith(PARSERS) else 1
                modules[name] = path.stat().st_size * work
    return modules


def shares(modules: dict[str, int], jobs: int) -> list[list[str]]:
    """Partition the modules into `jobs` parts of similar work, largest first; parsers are one."""
    parsers = [name for name in modules if name.startswith(PARSERS)]
    units = [parsers] if parsers else []
    units += [[name] for name in modules if not name.startswith(PARSERS)]
    works = [(sum(modules[name] for name in unit), unit) for unit in units]
    parts: list[list[str]] = [[] for _ in range(jobs)]
    totals = [0] * jobs
    for work, unit in sorted(works, key=lambda one: (-one[0], one[1])):
        least = totals.index(min(totals))
        parts[least] += unit
        totals[least] += work
    return [part for part in parts if part]


def compile_here(modules: Sequence[str]) -> None:
    """Import only these modules and what they need. The process is useless for anything else
    after it.

    The import of their packages would compile everything in its own order, in every process. Empty
    packages take their place.
    """
    for name in ("dualstream.solvers", "dualstream.solvers.rows.text"):
        package = ModuleType(name)
        package.__path__ = [str(folder_of(name))]
        sys.modules[name] = package
    for name in modules:
        importlib.import_module(name)


@contextmanager
def notice_of_compilation(say: Callable[[str], None]) -> Iterator[None]:
    """Context manager around the server's imports: call `say` if they have to compile kernels.

    Two other processes then compile the last ones, and those of a model without options, so that
    the first request that creates one does not wait for them.
    """
    done = threading.Event()
    begun: list[subprocess.Popen[bytes]] = []

    def notify() -> None:
        while not done.wait(NOTICE_AFTER_S):
            # The module may still be importing.
            compiled = getattr(sys.modules.get("dualstream.solvers.jit"), "compiled_count", None)
            if compiled is not None and compiled():
                say("kernels are compiled for this machine, once; this takes a minute or more")
                begun.extend(map(begin, (COMPILED_LAST, FIRST_MODEL)))
                return

    thread = threading.Thread(target=notify, name="notice_of_compilation", daemon=True)
    thread.start()
    is_imported = False
    try:
        yield
        is_imported = True
    finally:
        done.set()
        thread.join()
        for process in begun:
            if not is_imported:
                process.kill()
            process.wait()


def begin(modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that compiles these modules."""
    flags = ["-P"] if sys.flags.safe_path else []
    command = [sys.executable, *flags, "-m", "dualstream.service.server.compile_kernels", *modules]
    return subprocess.Popen(command)  # noqa: S603 - this interpreter, with module names


def main(modules: Sequence[str]) -> int:
    """Returns the exit code."""
    if modules:
        compile_here(modules)
        return 0
    parts = shares(kernel_modules(), len(os.sched_getaffinity(0)))
    processes = [begin(part) for part in parts]
    return max(abs(process.wait()) for process in processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

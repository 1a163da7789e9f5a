"""Compile all kernels at once, by as many processes as there are cores.

`python -m dualstream.service.server.compile_kernels` is the command.

Whoever imports a module with kernels compiles those that no cache holds, one after the other: more
than a minute for all of them. numba compiles in one thread, so here each of several processes
compiles a part of the modules, for the cache that all share. With names of
modules as arguments, the command compiles those in this process.
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
"""Imports that find all kernels in the cache take less."""


def folder_of(package: str) -> Path:
    """Where its files are; nothing is imported."""
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None, package
    return Path(spec.submodule_search_locations[0])


def kernel_modules() -> dict[str, int]:
    """The modules that have kernels, with how much there is to compile: bytes of source."""
    modules = {}
    for package in PACKAGES:
        folder = folder_of(package)
        for path in sorted(folder.rglob("*.py")):
            if re.search(rb"^@kernel\(", path.read_bytes(), re.MULTILINE):
                name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
                modules[name] = path.stat().st_size
    return modules


def shares(modules: dict[str, int], jobs: int) -> list[list[str]]:
    """The modules in `jobs` parts of about the same size: the largest first, to who has least."""
    parts: list[list[str]] = [[] for _ in range(jobs)]
    sizes = [0] * jobs
    for name in sorted(modules, key=lambda name: (-modules[name], name)):
        least = sizes.index(min(sizes))
        parts[least].append(name)
        sizes[least] += modules[name]
    return [part for part in parts if part]


def compile_here(modules: Sequence[str]) -> None:
    """Import these modules, and those that they need, alone; the process is of no use after it.

    Their package would import all that a server does, in its order: the same work in every process.
    So its place is taken by an empty one.
    """
    package = ModuleType("dualstream.solvers")
    package.__path__ = [str(folder_of("dualstream.solvers"))]
    sys.modules["dualstream.solvers"] = package
    for name in modules:
        importlib.import_module(name)


@contextmanager
def notice_of_compilation(say: Callable[[str], None]) -> Iterator[None]:
    """What is imported meanwhile may have to be compiled: who waits for it is told so."""

    done = threading.Event()

    def notify() -> None:
        while not done.wait(NOTICE_AFTER_S):
            # It may be there and not be finished yet.
            compiled = getattr(sys.modules.get("dualstream.solvers.jit"), "compiled_anew", None)
            if compiled is not None and compiled():
                say("kernels are compiled for this machine, once: half a minute or more")
                return

    thread = threading.Thread(target=notify, name="notice_of_compilation", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def begin(modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process that compiles these."""
    flags = ["-P"] if sys.flags.safe_path else []
    command = [sys.executable, *flags, "-m", "dualstream.service.server.compile_kernels", *modules]
    return subprocess.Popen(command)  # noqa: S603 - this interpreter, with names of modules


def main(modules: Sequence[str]) -> int:
    """The exit code."""
    if modules:
        compile_here(modules)
        return 0
    parts = shares(kernel_modules(), len(os.sched_getaffinity(0)))
    processes = [begin(part) for part in parts]
    return max(abs(process.wait()) for process in processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""All kernels compiled by several processes: each has its part, and together they miss none."""

import logging
import os
import subprocess
import sys
from contextlib import closing

import pytest

import dualstream.service.journal.record  # noqa: F401 - its kernels are the service's
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.server import compile_kernels
from dualstream.service.server.compile_kernels import (
    PARSERS,
    Background,
    Kernels,
    Progress,
    kernel_modules,
    shares,
)
from dualstream.solvers import jit
from dualstream.solvers.jit import DISABLED, compiled_signatures
from dualstream.solvers.spec.make_learner import warm
from tests.service.server.support import children, is_alive
from tests.support import until


@pytest.mark.parametrize("jobs", [1, 2, 3, 200])
def test_each_module_is_in_one_share_and_none_is_much_larger(jobs):
    modules = kernel_modules()
    parts = shares(modules, jobs)
    assert sorted(sum(parts, [])) == sorted(modules)
    sizes = [sum(modules[name].work for name in part) for part in parts]
    assert len(sizes) <= jobs
    parsers = sum(one.work for name, one in modules.items() if name.startswith(PARSERS))
    assert max(sizes) <= min(sizes) + max(parsers, *(one.work for one in modules.values()))
    assert sum(any(name.startswith(PARSERS) for name in part) for part in parts) == 1


@pytest.mark.skipif(DISABLED, reason="nothing is compiled")
def test_the_modules_are_all_that_have_kernels():
    warm()
    kernels = {name.rpartition(".")[0] for name in compiled_signatures()}
    kernels = {name for name in kernels if name.startswith("dualstream.")}
    assert "dualstream.service.journal.record.kernels" in kernels
    modules = kernel_modules()
    assert set(modules) == kernels
    assert sum(one.number for one in modules.values()) == len(compiled_signatures())


@pytest.mark.skipif(DISABLED, reason="nothing is compiled")
def test_a_part_is_compiled_with_what_it_needs_and_nothing_else():
    code = (
        "from dualstream.service.server.compile_kernels import compile_here;"
        "compile_here(['dualstream.solvers.portfolio.weighting_kernels']);"
        "from dualstream.solvers.jit import compiled_signatures; print(*compiled_signatures())"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    result = {name.rpartition(".")[0] for name in run.stdout.split()}
    assert {
        "dualstream.solvers.portfolio.weighting_kernels",
        "dualstream.solvers.rows.scalar",
    } <= result
    assert not result & {
        "dualstream.solvers.online.asset",
        "dualstream.solvers.rows.text.json",
        "dualstream.solvers.portfolio.fused_kernels",
    }


def test_serve_imports_no_client_and_no_kernels_before_it_can_show_their_compilation():
    code = (
        "import sys\n"
        "from dualstream.service.server import compile_kernels\n"
        "def notice(console):\n"
        "    prefixes = ('dualstream.solvers', 'dualstream.client', 'httpx')\n"
        "    print([name for name in sys.modules if name.startswith(prefixes)])\n"
        "    raise SystemExit\n"
        "compile_kernels.compiled_by_processes = notice\n"
        "from dualstream.service.cli import app\n"
        "app(['serve', '--port', '0', '--store', 'sqlite:///never-opened.db'])"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


SHOWN = """
import logging, pathlib, sys
from rich.console import Console
from dualstream.service.server import compile_kernels as kernels
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
modules = ["dualstream.solvers.nonlinear.hashed_numbers"]  # one kernel, and what it calls
kernels.PATIENCE_S = 0.0
kernels.imported_by = lambda program: {name: kernels.kernel_modules()[name] for name in modules}
with kernels.compiled_by_processes(Console(stderr=True)):
    kernels.compile_here(modules)
from dualstream.solvers import jit
print(jit.compiled_count(), jit.on_missing is jit.on_made is jit.no_action)
"""


def shown(folder):
    """Lines of a program without kernels in its cache."""
    return subprocess.run(
        [sys.executable, "-c", SHOWN],
        env=os.environ | {"DUALSTREAM_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


@pytest.mark.skipif(DISABLED, reason="nothing is compiled")
def test_missing_kernels_are_compiled_by_other_processes_with_their_progress(tmp_path):
    first, *_, last, result = shown(tmp_path)
    assert first == "compiling 0 of 1 kernels, once" and last.startswith("compiled kernels in ")
    assert result == "0 True", "the process compiled kernels itself"


@pytest.mark.skipif(DISABLED, reason="nothing is compiled")
def test_a_cache_that_cannot_be_written_is_one_line_and_compiled_with_progress(tmp_path):
    (tmp_path / "file").write_text("")
    first, *lines, result = shown(tmp_path / "file")
    assert first == "compiling 0 of 1 kernels, at each start"
    assert sum(line.startswith("the kernel cache failed, so") for line in lines) == 1
    assert result == "1 True"


def test_progress_counts_each_kernel_once_and_estimates_the_rest(monkeypatch):
    now, lines = [0.0], []
    monkeypatch.setattr(compile_kernels.time, "monotonic", lambda: now[0])
    modules = {"a": Kernels(300, 3), "b.c": Kernels(100, 2)}
    progress = Progress(modules, lambda share, line: lines.append((share, line)), "once")
    for name in ("b.c.one", "other.kernel", "b.c.one", "b.c.two", "a.one"):
        now[0] += 10.0
        progress.made(name)
    assert lines == [
        (0.0, "compiling 0 of 5 kernels, once"),
        (0.125, "compiling 1 of 5 kernels, about 70 s, once"),
        (0.25, "compiling 2 of 5 kernels, about 120 s, once"),
        (0.5, "compiling 3 of 5 kernels, about 50 s, once"),
    ]


def test_a_request_that_compiles_is_logged_once_for_each_module(monkeypatch, caplog):
    monkeypatch.setattr(jit, "on_missing", jit.no_action)
    compile_kernels.log_compilation()
    with caplog.at_level(logging.INFO):
        for name in ("solvers.asset.step", "solvers.asset.score", "solvers.rda.step"):
            jit.on_missing(name)
    assert [record.args[0] for record in caplog.records] == ["solvers.asset", "solvers.rda"]


def test_one_process_at_a_time_compiles_what_is_missing(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(jit, "_CACHE_DIR", tmp_path / "cache")
    monkeypatch.setattr(jit, "_SHIPPED", tmp_path / "none")
    monkeypatch.setattr(jit, "DISABLED", False)
    started = []

    def start(*arguments, **options):
        started.append(arguments)
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        return subprocess.Popen(command, **options)

    monkeypatch.setattr(compile_kernels, "_start", start)
    one, other = Background(), Background()
    one.begin()
    other.begin()
    assert one.is_running() and not other.is_running() and started == [("--rest",)]
    one.end()
    other.begin()
    assert len(started) == 2 and not one.is_running()
    other._process.stdin.close()
    until(lambda: not other.is_running(), 30)
    assert all(one.levelno < logging.WARNING for one in caplog.records)  # it ended with 0
    jit.mark_complete()
    one.begin()
    assert len(started) == 2 and not one.is_running()
    (tmp_path / "cache").rename(tmp_path / "moved")
    (tmp_path / "cache").write_text("")
    with caplog.at_level(logging.INFO):
        one.begin()
    assert len(started) == 2 and "are compiled when a model needs them" in caplog.text


def test_the_process_ends_with_its_server(tmp_path):
    command = [sys.executable, "-m", "dualstream.service.server.compile_kernels", "--rest"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        until(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == 19, 30)
        process.stdin.close()
        assert process.wait(20) == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_has_one_such_process_once_it_is_ready(tmp_path, workers):
    module = "tests.service.server.missing_kernels"
    flags = ["--workers", workers]
    for end in (ServerProcess.stop, ServerProcess.kill):
        store, env = f"sqlite:///{tmp_path / 'rows.db'}", {"TMPDIR": str(tmp_path)}
        server = ServerProcess(store, flags, env, module=module)
        with closing(server.process.stdout):
            until(lambda server=server: len(children(server)) == 1 + (workers == "2") * 2, 30)
            below = children(server)
            end(server)
            until(lambda below=below: not any(map(is_alive, below)), 20)

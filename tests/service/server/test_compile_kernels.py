"""All kernels compiled by several processes: each has its part, and together they miss none."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest

import dualstream.service.journal.record  # noqa: F401 - its kernels are the service's
from dualstream.service.server import compile_kernels as kernels
from dualstream.service.server.compile_kernels import PARSERS, kernel_modules, shares
from dualstream.solvers import jit
from dualstream.solvers.jit import DISABLED, compiled_signatures
from dualstream.solvers.spec.make_learner import warm


@pytest.mark.parametrize("jobs", [1, 2, 3, 200])
def test_each_module_is_in_one_share_and_none_is_much_larger(jobs):
    modules = kernel_modules()
    parts = shares(modules, jobs)
    assert sorted(sum(parts, [])) == sorted(modules)
    sizes = [sum(modules[name] for name in part) for part in parts]
    assert len(sizes) <= jobs
    parsers = sum(work for name, work in modules.items() if name.startswith(PARSERS))
    assert max(sizes) <= min(sizes) + max(parsers, *modules.values())
    assert sum(any(name.startswith(PARSERS) for name in part) for part in parts) == 1


@pytest.mark.skipif(DISABLED, reason="nothing is compiled")
def test_the_modules_are_all_that_have_kernels():
    warm()
    kernels = {name.rpartition(".")[0] for name in compiled_signatures()}
    kernels = {name for name in kernels if name.startswith("dualstream.")}
    assert "dualstream.service.journal.record.kernels" in kernels
    assert set(kernel_modules()) == kernels


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


@pytest.mark.skipif(DISABLED, reason="nothing is compiled")
def test_readiness_reports_compilation_without_a_cache(tmp_path):
    code = (
        "import time; from dualstream.service.server import compile_kernels as kernels\n"
        "kernels.NOTICE_AFTER_S = 0.05\n"
        "modules = ['dualstream.solvers.nonlinear.hashed_numbers']  # one kernel\n"
        "kernels.COMPILED_LAST = kernels.FIRST_MODEL = modules\n"
        "with kernels.notice_of_compilation(print):\n"
        "    kernels.compile_here(modules); time.sleep(0.5)"
    )
    command = [sys.executable, "-c", code]
    environment = os.environ | {"DUALSTREAM_CACHE_DIR": str(tmp_path)}
    got = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert got[0].count("kernels are compiled") == 1
    assert not got[1]


def test_serve_imports_no_client_and_no_kernels_before_it_can_say_that_they_are_compiled():
    code = (
        "import sys\n"
        "from dualstream.service.server import compile_kernels\n"
        "def notice(say):\n"
        "    prefixes = ('dualstream.solvers', 'dualstream.client', 'httpx')\n"
        "    print([name for name in sys.modules if name.startswith(prefixes)])\n"
        "    raise SystemExit\n"
        "compile_kernels.notice_of_compilation = notice\n"
        "from dualstream.service.cli import app\n"
        "app(['serve', '--port', '0', '--store', 'sqlite:///never-opened.db'])"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def imported(program: str) -> set[str]:
    """Modules with kernels that a program imports."""
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; {program}; print(*sys.modules)"],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stdout.split()) & set(kernel_modules())


def test_other_processes_compile_the_last_imports_and_what_the_first_model_needs():
    here = "from dualstream.service.server.compile_kernels import *; compile_here"
    server = imported("import dualstream.service.server.serve")
    last, first = imported(f"{here}(COMPILED_LAST)"), imported(f"{here}(FIRST_MODEL)")
    model = imported(
        "import dualstream.service.server.serve, dualstream.solvers as solvers;"
        "solvers.make_learner({})"
    )
    assert set(kernels.COMPILED_LAST) <= last <= server
    assert not last & {"dualstream.solvers.rows.text.vw", "dualstream.solvers.rows.scalar"}
    assert set(kernels.FIRST_MODEL) <= model - server <= first <= model


@pytest.mark.parametrize("ends", [True, False])
def test_a_server_starts_when_all_are_compiled_and_kills_the_others_if_it_fails(monkeypatch, ends):
    begun = []

    def begin(modules):
        code = f"import time; time.sleep({0.2 if ends else 600})"
        begun.append((modules, subprocess.Popen([sys.executable, "-c", code])))
        return begun[-1][1]

    said = threading.Event()
    monkeypatch.setattr(kernels, "begin", begin)
    monkeypatch.setattr(kernels, "NOTICE_AFTER_S", 0.001)
    monkeypatch.setattr(jit, "compiled_count", lambda: 1)
    with (
        nullcontext() if ends else pytest.raises(ImportError),
        kernels.notice_of_compilation(lambda line: said.set()),
    ):
        assert said.wait(10)
        if not ends:
            raise ImportError
    assert [modules for modules, _ in begun] == [kernels.COMPILED_LAST, kernels.FIRST_MODEL]
    assert [process.returncode for _, process in begun] == [0 if ends else -signal.SIGKILL] * 2

"""Kernels: one signature each, one pinned CPU, one cache."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dualstream import solvers
from dualstream.solvers import Batch, jit, make_learner, numeric_identity
from dualstream.solvers.jit import DISABLED, compiled_signatures
from dualstream.solvers.losses.loss_table import LOSSES, MARGIN_LOSSES
from dualstream.solvers.numeric_identity import APPLY_VERSION
from dualstream.solvers.spec.make_learner import warm

ROOT = Path(solvers.__file__).parent
CHECKOUT = ROOT.parents[1]
compiled_only = pytest.mark.skipif(DISABLED, reason="nothing is compiled")


def python(code, **environment):
    """What a fresh interpreter prints for `code`."""
    keep = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    for name in ("NUMBA_BOUNDSCHECK", "NUMBA_DISABLE_INTEL_SVML"):
        keep.pop(name, None)
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=keep | {"PYTHONPATH": str(CHECKOUT)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip(), result.stderr


def test_public_names_are_sorted_and_exist():
    assert solvers.__all__ == sorted(solvers.__all__)
    assert all(hasattr(solvers, name) for name in solvers.__all__)


@compiled_only
def test_no_call_compiles_anything_once_warm():
    count = warm()
    before = compiled_signatures()
    assert len(before) == count and set(before.values()) <= {0, 1}
    x = np.eye(4)
    read_only = np.eye(4)
    read_only.flags.writeable = False
    for loss in LOSSES:
        task = "binary" if loss in MARGIN_LOSSES else "regression"
        for window in ("infinite", "exponential", "sliding"):
            spec = {"task": task, "loss": loss, "window": window}
            learner = make_learner(spec | {"features": {"kind": "indexed", "dim": 4}})
            for matrix in (x, read_only, x.astype(np.float32), np.asfortranarray(x)):
                learner.learn(Batch.from_dense(matrix, np.ones(4, int)))
            learner.certificate()
            learner.probabilities(learner.predict(Batch.from_dense(x)))
            learner.restore(learner.state())
    Batch.from_libsvm(b"1 1:1", 4)
    assert compiled_signatures() == before


@pytest.fixture(scope="module")
def imported():
    """Facts about the package, printed by a fresh interpreter."""
    code = (
        "import json, sys; from dualstream import solvers;"
        "from numba.core.registry import cpu_target as t;"
        "print(json.dumps({'modules': sorted(sys.modules), 'identity': solvers.numeric_identity(),"
        " 'target': t.target_context.codegen().magic_tuple()[1:]}))"
    )
    return json.loads(python(code)[0])


@compiled_only
def test_importing_the_package_loads_no_learner(imported):
    assert "dualstream.solvers" in imported["modules"]
    assert "dualstream.solvers.online.dual_ascent.learner" not in imported["modules"]


def test_only_one_file_reads_the_environment():
    readers = [
        path.name
        for path in sorted(ROOT.rglob("*.py"))
        if any(
            isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            for node in ast.walk(ast.parse(path.read_text()))
        )
    ]
    assert readers == ["jit.py"]


def test_numeric_identity_names_version_cpu_and_library(imported):
    version, cpu, *rest = numeric_identity().split(" ")
    assert version == str(APPLY_VERSION)
    assert cpu in ("x86-64-v3", "generic") or os.environ.get("DUALSTREAM_CPU") == cpu
    assert "libm-" in rest[-1]
    assert imported["identity"] == numeric_identity()


def test_the_cpu_can_be_chosen(tmp_path):
    code = "from dualstream import solvers; print(solvers.numeric_identity().split(' ')[1])"
    result = python(code, DUALSTREAM_CPU="generic", NUMBA_DISABLE_JIT="1")
    assert result[0] == "generic"


@compiled_only
def test_kernels_are_compiled_for_the_features_of_the_named_cpu_alone(imported):
    assert imported["target"] == [numeric_identity().split(" ")[1], ""]


ONE_KERNEL = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("jit", {str(ROOT / "jit.py")!r})
jit = importlib.util.module_from_spec(spec)
spec.loader.exec_module(jit)

@jit.kernel
def double(x: float) -> float:
    return 2.0 * x

print(double(1.5), len(double.stats.cache_hits), len(double.stats.cache_misses))
"""


WITH_VIEWS = """

@jit.kernel
def total(rows: jit.F8_2D) -> float:
    found = 0.0
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(row.shape[0]):
            found += row[j] if row[j] > 0.0 else 0.0
    return found

print(["NRT_" in code for code in total.inspect_llvm().values()])
"""


@pytest.fixture
def one_kernel(tmp_path):
    """Code for `python` that compiles one kernel and calls it, without the rest of the package."""
    path = tmp_path / "one_kernel.py"
    path.write_text(ONE_KERNEL)
    return f"import runpy; runpy.run_path({str(path)!r})"


@compiled_only
def test_kernels_count_no_references_to_their_arrays(tmp_path):
    path = tmp_path / "with_views.py"
    path.write_text(ONE_KERNEL + WITH_VIEWS)
    code = f"import runpy; runpy.run_path({str(path)!r})"
    assert python(code, DUALSTREAM_CACHE_DIR=str(tmp_path))[0].splitlines()[1] == "[False]"


@compiled_only
def test_a_kernel_that_only_kernels_call_cannot_be_called_from_python(tmp_path):
    path = tmp_path / "inner.py"
    path.write_text(
        ONE_KERNEL.replace("@jit.kernel", "@jit.kernel(inner=True)").replace(
            "print(double(1.5), len(double.stats.cache_hits), len(double.stats.cache_misses))", ""
        )
        + """
@jit.kernel
def four_times(x: float) -> float:
    return double(double(x))

print(four_times(1.5), len(double.signatures))
double(1.5)
"""
    )
    code = f"import runpy; runpy.run_path({str(path)!r})"
    for result in ("6.0 1", "6.0 0"):  # compiled, then cached: only the caller is loaded
        with pytest.raises(subprocess.CalledProcessError) as failed:
            python(code, DUALSTREAM_CACHE_DIR=str(tmp_path))
        assert failed.value.returncode == 1 and failed.value.stdout.strip() == result
        assert "TypeError: No matching definition" in failed.value.stderr


MACHINE_CODE = """
from llvmlite import binding
from numba.core.compiler import Flags

@jit.kernel(inner=True)
def thrice(x: float) -> float:
    return 3.0 * x

@jit.kernel
def nine_times(x: float) -> float:
    return thrice(thrice(x))

def has_code(kernel):
    (entry,) = kernel.overloads.values()
    objects = binding.ObjectFileRef.from_data(entry.library._get_compiled_object())
    return any(part.is_text() and part.size() for part in objects.sections())

flags = Flags()
flags.release_gil = True
print(has_code(thrice), has_code(nine_times), nine_times(1.0))
print(flags.values() == {name: getattr(flags, name) for name in flags.options}, gc.get_threshold())
"""


@compiled_only
def test_a_kernel_that_only_kernels_call_has_no_machine_code(tmp_path):
    path = tmp_path / "machine_code.py"
    path.write_text("import gc\ngc.set_threshold(999, 9, 9)\n" + ONE_KERNEL + MACHINE_CODE)
    code = f"import runpy; runpy.run_path({str(path)!r})"
    _, result, options = python(code, DUALSTREAM_CACHE_DIR=str(tmp_path))[0].splitlines()
    assert result == "False True 9.0"
    assert options == "True (999, 9, 9)", "numba's options or Python's thresholds have changed"


@compiled_only
def test_the_cpu_stays_pinned_when_numba_was_imported_first(one_kernel, tmp_path):
    """numba reads its variables again at the first compilation, if one of them has changed."""
    code = f"import numba; {one_kernel}; print(numba.config.CPU_NAME)"
    result = python(code, DUALSTREAM_CACHE_DIR=str(tmp_path))[0].splitlines()
    assert result == ["3.0 0 1", numeric_identity().split(" ")[1]]


@compiled_only
def test_kernels_come_from_the_cache_the_second_time(one_kernel, tmp_path):
    cache = tmp_path / "cache"
    code = f"{one_kernel}; import sys; print('numba.np.arraymath' in sys.modules)"
    assert python(code, DUALSTREAM_CACHE_DIR=str(cache))[0] == "3.0 0 1\nTrue"
    # numba's implementations of functions take as long to import as numba itself.
    assert python(code, NUMBA_CACHE_DIR=str(cache))[0] == "3.0 1 0\nFalse"
    assert len(list(cache.iterdir())) == 1
    python(one_kernel, DUALSTREAM_CACHE_DIR=str(cache), NUMBA_BOUNDSCHECK="1")
    assert len(list(cache.iterdir())) == 2, "bounds checks are not in numba's own key"


@compiled_only
def test_the_cache_is_in_the_users_cache_directory(one_kernel, tmp_path):
    python(one_kernel, XDG_CACHE_HOME=str(tmp_path / "xdg"))
    assert len(list((tmp_path / "xdg" / "dualstream").iterdir())) == 1
    python(one_kernel, XDG_CACHE_HOME="", HOME=str(tmp_path / "home"))
    assert len(list((tmp_path / "home" / ".cache" / "dualstream").iterdir())) == 1


@compiled_only
def test_without_a_writable_cache_there_is_one_warning_and_it_works(one_kernel, tmp_path):
    (tmp_path / "file").write_text("")
    out, errors = python(one_kernel, DUALSTREAM_CACHE_DIR=str(tmp_path / "file" / "x"))
    assert out.startswith("3.0 ")
    assert errors.count("\n") == 1 and errors.startswith("the kernel cache failed")


FILES = {
    "shared": """
from typing import NamedTuple
from dualstream.solvers.jit import kernel

STEP, UNUSED = 2.0, 3.0

class Pair(NamedTuple):
    a: float
    b: float

@kernel(inner=True)
def stepped(x: float) -> float:
    return x + STEP
""",
    "online": """
import shared
from dualstream.solvers.jit import kernel
from shared import stepped

@kernel
def twice(x: float) -> float:
    return stepped(stepped(x))

@kernel
def longer(x: float) -> float:
    return x + shared.STEP
""",
    "nonlinear": """
from typing import Annotated
from dualstream.solvers.jit import kernel, types
from shared import Pair

FIELDS = (types.float64, types.float64)

@kernel
def of_pair(pair: Annotated[Pair, types.NamedTuple(FIELDS, Pair)]) -> float:
    return pair.a

@kernel
def half(x: float) -> float:
    return 0.5 * x

@kernel
def quarter(x: float) -> float:
    return half(half(x))
""",
}


@compiled_only
def test_an_edit_leaves_cached_kernels_valid_that_do_not_depend_on_it(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "_CACHE_DIR", tmp_path)

    def compiled(file="", old="", new=""):
        """The kernels that the cache lacks after an edit of one file."""
        monkeypatch.setattr(jit, "_KERNELS", [])
        for name, source in FILES.items():
            module = ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            exec(source.replace(old, new) if name == file else source, module.__dict__)
        return {one.__name__ for one in jit._KERNELS if one.stats.cache_misses}

    assert compiled() == {"stepped", "twice", "longer", "of_pair", "half", "quarter"}
    assert compiled() == set()
    assert compiled("shared", "UNUSED = 2.0, 3.0", "UNUSED = 2.0, 4.0  # unused") == set()
    assert compiled("nonlinear", "0.5 * x", "0.25 * x") == {"half", "quarter"}
    assert compiled("nonlinear", "half(half(x))", "half(half(half(x)))") == {"quarter"}
    assert sys.modules["nonlinear"].quarter(8.0) == 1.0, "its call of a cached kernel"
    stale = {"stepped", "twice", "longer"}
    assert compiled("shared", "STEP, UNUSED = 2.0", "STEP, UNUSED = 2.5") == stale
    assert compiled("shared", "x + STEP", "x - STEP") == {"stepped", "twice"}
    assert compiled("shared", "inner=True", "inner=True, apart=True") == {"stepped", "twice"}
    assert compiled("shared", "stepped(x: float)", "stepped(x: int)") == {"stepped", "twice"}
    assert compiled("shared", "a: float\n    b", "b: float\n    a") == {"of_pair"}
    assert compiled() == set()


@compiled_only
def test_kernels_of_a_wheel_are_read_and_others_are_compiled_with_one_line(
    tmp_path, monkeypatch, caplog
):
    own, wheel = tmp_path / "own", tmp_path / "wheel"
    monkeypatch.setattr(jit, "_CACHE_DIR", own)
    monkeypatch.setattr(jit, "_SHIPPED", wheel)

    def compiled():
        """The kernels that were compiled, and what was logged."""
        caplog.clear()
        jit._explain_shipped.cache_clear()
        monkeypatch.setattr(jit, "_ERRORS", [])
        monkeypatch.setattr(jit, "_KERNELS", [])
        for name in FILES:
            module = ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            exec(FILES[name], module.__dict__)
        assert sys.modules["online"].twice(1.0) == 5.0
        names = {one.__name__ for one in jit._KERNELS if one.stats.cache_misses}
        return names, caplog.messages

    every = {"stepped", "twice", "longer", "of_pair", "half", "quarter"}
    assert compiled() == (every, []) and not jit.is_complete()
    assert compiled() == (set(), [])
    jit.copy_kernels(wheel)
    platform = wheel / jit.PLATFORM
    files = {path.name.split("-")[0]: path for path in platform.iterdir()}
    # Inner kernels are in their callers. Only `half` is called by a kernel that is not there.
    assert set(files) == {f"online.{one}" for one in ("twice", "longer")} | {
        f"nonlinear.{one}" for one in ("of_pair", "half", "quarter")
    } | {"complete"}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    assert sizes["online.twice"] < sizes["nonlinear.half"]
    shutil.rmtree(own)
    assert compiled() == (set(), []) and jit.is_complete()
    assert not own.exists(), "nothing is written where everything is in the wheel"

    files["nonlinear.quarter"].write_bytes(b"")
    names, (line,) = compiled()
    assert names == {"quarter"} and line.endswith(f"{files['nonlinear.quarter']} is damaged")
    assert compiled() == (set(), []), "it is compiled, and reported, once"
    files["complete"].unlink()
    files["nonlinear.half"].unlink()
    names, (line,) = compiled()
    assert names == {"half"} and line.endswith("those of the installed wheel are of other sources")
    platform.rename(wheel / "cpython-311-numba-0.1")
    names, (line,) = compiled()
    assert names == every - {"half", "quarter"}
    assert f"are of cpython-311-numba-0.1, and this is {jit.PLATFORM}" in line


TWO_KERNELS = """
import jit

@jit.kernel
def double(x: float) -> float:
    return 2.0 * x

@jit.kernel
def triple(x: float) -> float:
    return 3.0 * x

print(double(1.5), triple(1.5), jit.compiled_count())
"""
# Forks of one process, because each import of numba takes a second.
DAMAGES = """
import json, os, resource, runpy, sys
import jit

PATH, CACHE, said = sys.argv[1], jit._CACHE_DIR, {}

@jit.kernel  # numba imports much at its first compilation
def first(x: float) -> float:
    return x

jit._KERNELS.clear()
for path in CACHE.iterdir():
    path.unlink()

def run(case, before=lambda: None):
    reading, writing = os.pipe()
    if not os.fork():
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        before()
        runpy.run_path(PATH)
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    said[case] = os.fdopen(reading).read().splitlines()
    assert os.wait()[1] == 0, said[case]

def refuse_writing(event, arguments):
    if event == "open" and str(CACHE) in str(arguments[0]) and arguments[2] & os.O_ACCMODE:
        raise OSError(30, "Read-only file system", arguments[0])

def read_only():
    sys.addaudithook(refuse_writing)

def full():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

run("cold, full", full)
run("cold, read-only", read_only)
run("cold")
run("warm")
run("warm, read-only", read_only)
double, triple = sorted(CACHE.iterdir())
good = double.read_bytes()
for case, content in {
    "empty": b"",
    "short": good[:20],
    "cut": good[:-100],
    "changed": good[:-100] + bytes([good[-100] ^ 1]) + good[-99:],
    "of another kernel": triple.read_bytes(),
    "foreign": b"x" * 10_000,
}.items():
    double.write_bytes(content)
    run(case)
    run(f"{case}, replaced")
double.unlink()
run("missing, read-only", read_only)
double.mkdir()
run("unreadable", read_only)
assert len(list(CACHE.iterdir())) == 2
print(json.dumps(said))
"""


@compiled_only
def test_errors_of_the_cache_are_misses_with_one_warning(tmp_path):
    path, script = tmp_path / "two_kernels.py", tmp_path / "damages.py"
    path.write_text(TWO_KERNELS)
    script.write_text(DAMAGES)
    code = f"""
import runpy, sys
sys.argv.append({str(path)!r})
sys.path.append({str(ROOT)!r})
runpy.run_path({str(script)!r})
"""
    said = json.loads(python(code, DUALSTREAM_CACHE_DIR=str(tmp_path / "cache"))[0])
    compiled = {case: int(lines[-1].removeprefix("3.0 4.5 ")) for case, lines in said.items()}
    warm = {case for case in said if "warm" in case or "replaced" in case}
    cold = {case for case in said if "cold" in case}
    assert len(warm) == 8 and len(cold) == 3
    assert compiled == {case: 0 if case in warm else 2 if case in cold else 1 for case in said}
    for case, (*warnings, _) in said.items():
        is_fine = case in warm or case == "cold"
        assert len(warnings) == (not is_fine), (case, warnings)
        assert all("the kernel cache failed" in line for line in warnings)


def test_plain_python_gives_the_same():
    """Coverage and tracebacks come from NUMBA_DISABLE_JIT=1; it must run the same code."""
    code = (
        f"import os, pathlib; from dualstream import solvers; os.chdir({str(CHECKOUT)!r});"
        "text = pathlib.Path('tests/golden/a9a_500.libsvm').read_bytes();"
        "b = solvers.Batch.from_libsvm(text, 123).batch[:50];"
        "features = {'kind': 'indexed', 'dim': 123};"
        "m = solvers.make_learner({'window': 'sliding', 'features': features});"
        "m.learn(b); print(m.certificate().gap.hex(), float(m.weights.sum()).hex())"
    )
    results = {python(code, NUMBA_DISABLE_JIT=flag)[0] for flag in "01"}
    assert len(results) == 1

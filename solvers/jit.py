"""The one way to make a kernel, and what every kernel of a fleet must agree on.

A kernel is compiled when its module is imported, for the signature written beside it and for no
other: a call with other types is a TypeError, never a compilation. Its machine code depends on the
pinned CPU alone, so that all workers compute the same bits and a cache baked into an image hits.

Settings, read here once and nowhere else:
    DUALSTREAM_CPU         LLVM's name of the CPU to compile for (default: x86-64-v3, else generic)
    DUALSTREAM_CACHE_DIR   where compiled kernels are kept (also NUMBA_CACHE_DIR, XDG_CACHE_HOME)
    NUMBA_DISABLE_JIT, NUMBA_BOUNDSCHECK   as numba defines them
"""

import functools
import hashlib
import math
import os
import struct
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

# numba reads this when it is imported; SVML's exp has other bits than the C library's.
os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import binding as llvm  # type: ignore[import-untyped]
from numba.core.cpu import CPUTargetOptions
from numba.core.options import TargetOptions
from numba.core.registry import cpu_target

APPLY_VERSION = 4
"""Raised whenever any bit of any state could come out differently."""

# numba fills these two as it runs; no type checker can know them.
_config: Any = numba.config
types: Any = numba.types

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The same arrays for the type checker and for numba, which knows their rank and layout too.
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

# What signatures are made of. The RO_ ones also take arrays that may not be written.
b1, i4, i8, u1, f8 = types.boolean, types.int32, types.int64, types.uint8, types.float64
void = types.void
B1, I4, I8, U1, F8 = b1[::1], i4[::1], i8[::1], u1[::1], f8[::1]
F8_2D, I4_2D = f8[:, ::1], i4[:, ::1]
RO_F8_2D = types.Array(f8, 2, "C", readonly=True)
RO_I8_2D = types.Array(i8, 2, "C", readonly=True)
RO_I4 = types.Array(i4, 1, "C", readonly=True)
RO_I8 = types.Array(i8, 1, "C", readonly=True)
RO_U1 = types.Array(u1, 1, "C", readonly=True)
RO_F8 = types.Array(f8, 1, "C", readonly=True)

# numba hands this flag of its own to LLVM, and offers it to no kernel of a CPU.
_options: Any = TargetOptions
CPUTargetOptions.noalias = _options.Mapping("noalias")

SHARED_KERNELS = (
    "core/scalar.py",
    "portfolio/columns.py",
    "portfolio/logistic_roots.py",
    "portfolio/weighting_kernels.py",
    "text/name_cache.py",
    "text/tokens.py",
)
"""The files whose kernels those of other files may call."""

# The features of the x86-64-v3 level that tell whether this machine has it.
_V3_FEATURES = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")


def _cpu_name() -> str:
    chosen = os.environ.get("DUALSTREAM_CPU")
    if chosen:
        return chosen
    features = llvm.get_host_cpu_features()
    return "x86-64-v3" if all(features.get(name) for name in _V3_FEATURES) else "generic"


def _pin_cpu() -> str:
    """Compile for a named CPU, with the features of that name and not those of this machine."""
    if "_toplevel_target_context" in vars(cpu_target):
        warnings.warn(
            "numba compiled something before solvers was imported: its CPU cannot be pinned",
            RuntimeWarning,
            stacklevel=2,
        )
        return str(_config.CPU_NAME or llvm.get_host_cpu_name())
    _config.CPU_NAME = _cpu_name()
    # Empty, and not None: None would add the features of the machine at hand.
    _config.CPU_FEATURES = ""
    return str(_config.CPU_NAME)


def _cache_root() -> Path:
    for name in ("DUALSTREAM_CACHE_DIR", "NUMBA_CACHE_DIR"):
        if os.environ.get(name):
            return Path(os.environ[name])
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "dualstream"


def _cache_dir() -> str | None:
    """A writable directory named by what numba's own cache key leaves out, or None.

    The key of a cached kernel covers its own file and not the functions that it calls in another
    one (numba#1833), nor how it is compiled. So these files, this one and bounds checking name the
    directory.
    """
    try:
        stamp = hashlib.sha256()
        stamp.update(Path(__file__).read_bytes())
        for shared in SHARED_KERNELS:
            stamp.update((Path(__file__).parent / shared).read_bytes())
        stamp.update(f"{numba.__version__} {_config.BOUNDSCHECK}".encode())
        path = _cache_root() / stamp.hexdigest()[:16]
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        warnings.warn(
            f"kernels are compiled anew in each process, as no cache can be written: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return str(path)


DISABLED: bool = _config.DISABLE_JIT
"""Whether kernels run as plain Python (NUMBA_DISABLE_JIT=1)."""

_CPU = _pin_cpu()
_CACHE_DIR = None if DISABLED else _cache_dir()
_MAKING = threading.Lock()
_KERNELS: list[tuple[Any, Any]] = []


def kernel(
    signature: Any, *, inline: bool = False, apart: bool = False
) -> Callable[[_Function], _Function]:
    """Compile a function for `signature` (of numba types) as its module is imported.

    With `inline` its code is put into whoever calls it: for parts of a row's way, as a call hands
    over six numbers for each array, and some tens of them cost more than a row. With `apart` its
    arrays never overlap, so that loops over several of them can take four numbers at a time.

    A kernel gets preallocated arrays and updates them in place; it allocates nothing, raises
    nothing and draws no random numbers. It may call kernels of its own file and of SHARED_KERNELS.
    """

    def compile_it(function: _Function) -> _Function:
        if DISABLED:
            return _as_python(function)
        jit: Any = numba.njit
        # Nothing is allocated, so there are no references to count: numba would, by atomic
        # additions for every view of a row, and that took a quarter of a portfolio's time.
        options = {"nogil": True, "error_model": "numpy", "_nrt": False}
        options |= {"cache": _CACHE_DIR is not None}
        options |= {"forceinline": inline} | ({"noalias": True} if apart else {})
        # Only while this kernel is made: other users of numba keep their own cache. One at a time:
        # families are imported in threads, and numba reads the directory more than once.
        with _MAKING:
            before, _config.CACHE_DIR = _config.CACHE_DIR, _CACHE_DIR or ""
            try:
                compiled = jit(signature, **options)(function)
            finally:
                _config.CACHE_DIR = before
        _KERNELS.append((compiled, signature))
        return compiled  # type: ignore[no-any-return]

    return compile_it


def _as_python(function: _Function) -> _Function:
    """The function itself, dividing and overflowing as the compiled one does: silently."""

    @functools.wraps(function)
    def quiet(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return quiet  # type: ignore[return-value]


def warm() -> int:
    """Make sure that every kernel imported so far is compiled; return how many there are."""
    for compiled, signature in _KERNELS:
        if not compiled.signatures:
            compiled.compile(signature)
    return len(_KERNELS)


def compiled_anew() -> int:
    """How many kernels imported so far no cache had."""
    return sum(sum(compiled.stats.cache_misses.values()) for compiled, _ in list(_KERNELS))


def compiled_signatures() -> dict[str, int]:
    """How many signatures each kernel was compiled for: one each, ever."""
    return {
        f"{compiled.__module__}.{compiled.__name__}": len(compiled.signatures)
        for compiled, _ in _KERNELS
    }


@functools.cache
def numeric_identity() -> str:
    """What must be equal between two workers for their states to be equal bit for bit.

    The apply version, the CPU that kernels are compiled for, the C library, and a digest of what
    that library's functions really return here: it picks other code on CPUs without FMA, and
    then log, expm1, cos and sin differ in their last bit although its version is the same.
    """
    library = os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else None
    name = f"{APPLY_VERSION} {_CPU} {library or 'unknown libc'} libm-{_libm_digest()}"
    return name + " svml" if getattr(_config, "USING_SVML", False) else name


def _libm_digest() -> str:
    points = [0.0625 + 0.0507 * i for i in range(512)]
    functions = (math.exp, math.log, math.log1p, math.expm1, math.tanh, math.cos, math.sin)
    values = [function(x) for function in functions for x in points]
    return hashlib.sha256(struct.pack(f"<{len(values)}d", *values)).hexdigest()[:8]

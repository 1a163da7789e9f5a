"""Kernels: numba compilation for a pinned CPU, and the kernel cache.

A kernel is compiled, or loaded from the cache, when its module is imported, only for the signature
of its annotations: a call with other types is a TypeError, never a compilation. A kernel that only
kernels call waits until a caller is compiled: cached callers contain its code. Machine code depends
only on the pinned CPU. So all workers compute the same bits, and a cache baked into an image or a
wheel is valid.

Settings, read only here:
    DUALSTREAM_CPU         LLVM's name of the CPU to compile for (default: x86-64-v3, else generic)
    DUALSTREAM_CACHE_DIR   directory of compiled kernels (also NUMBA_CACHE_DIR, XDG_CACHE_HOME)
    NUMBA_DISABLE_JIT, NUMBA_BOUNDSCHECK   as numba defines them
"""

import functools
import gc
import hashlib
import logging
import math
import os
import pickle
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Annotated, Any, TypeVar, overload

# SVML's exp has other bits than the C library's.
os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")

try:
    import numba
except ModuleNotFoundError as missing:
    needs = f"dualstream.solvers needs {missing.name}: pip install 'dualstream[server]'"
    raise ModuleNotFoundError(needs, name=missing.name) from None
import llvmlite  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from llvmlite import binding as llvm
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, compile_result
from numba.core.cpu import CPUTargetOptions
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.options import TargetOptions
from numba.core.registry import cpu_target
from numba.core.serialize import dumps
from numba.core.typed_passes import InlineOverloads, NopythonRewrites
from numba.core.untyped_passes import InlineClosureLikes

# numba sets these two at run time, so no type checker knows them.
log = logging.getLogger("dualstream.kernels")

_config: Any = numba.config
types: Any = numba.types

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Array types for the type checker.
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


def _read_only(dtype: Any, rank: int = 1) -> Any:
    return types.Array(dtype, rank, "C", readonly=True)


# Types of a kernel's arguments: for numba, they have rank and layout, too. The RO_ ones also accept
# read-only arrays.
B1 = Annotated[Flags, types.boolean[::1]]
RO_B1 = Annotated[Flags, _read_only(types.boolean)]
U1 = Annotated[Bytes, types.uint8[::1]]
RO_U1 = Annotated[Bytes, _read_only(types.uint8)]
U1_2D = Annotated[Bytes, types.uint8[:, ::1]]
I4 = Annotated[Indices, types.int32[::1]]
RO_I4 = Annotated[Indices, _read_only(types.int32)]
I4_2D = Annotated[Indices, types.int32[:, ::1]]
RO_I4_2D = Annotated[Indices, _read_only(types.int32, 2)]
I8 = Annotated[Ints, types.int64[::1]]
RO_I8 = Annotated[Ints, _read_only(types.int64)]
I8_2D = Annotated[Ints, types.int64[:, ::1]]
RO_I8_2D = Annotated[Ints, _read_only(types.int64, 2)]
F4 = Annotated[npt.NDArray[np.float32], types.float32[::1]]
F4_2D = Annotated[npt.NDArray[np.float32], types.float32[:, ::1]]
F8 = Annotated[Floats, types.float64[::1]]
RO_F8 = Annotated[Floats, _read_only(types.float64)]
F8_2D = Annotated[Floats, types.float64[:, ::1]]
RO_F8_2D = Annotated[Floats, _read_only(types.float64, 2)]
F8_3D = Annotated[Floats, types.float64[:, :, ::1]]
u1 = Annotated[int, types.uint8]
f4 = Annotated[Any, types.float32]
_PLAIN_TYPES = {None: types.void, bool: types.boolean, int: types.int64, float: types.float64}

# numba passes this flag of its own to LLVM, but does not offer it for CPU kernels.
_options: Any = TargetOptions
CPUTargetOptions.noalias = _options.Mapping("noalias")

# The features of the x86-64-v3 level that decide whether this machine has it.
_V3_FEATURES = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")


def _cpu_name() -> str:
    chosen = os.environ.get("DUALSTREAM_CPU")
    if chosen:
        return chosen
    features = llvm.get_host_cpu_features()
    return "x86-64-v3" if all(features.get(name) for name in _V3_FEATURES) else "generic"


def _pin_cpu() -> str:
    """Compile for a named CPU, with the features of that name rather than of this machine."""
    # numba reads its variables on import, and again at a compilation if one has changed since. That
    # second reading would drop the CPU's name, so it is done now.
    _config.reload_config()
    if "_toplevel_target_context" in vars(cpu_target):
        warnings.warn(
            "numba compiled something before solvers was imported: its CPU cannot be pinned",
            RuntimeWarning,
            stacklevel=2,
        )
        return str(_config.CPU_NAME or llvm.get_host_cpu_name())
    _config.CPU_NAME = _cpu_name()
    # Empty, not None: None adds the features of this machine.
    _config.CPU_FEATURES = ""
    return str(_config.CPU_NAME)


def _cache_root() -> Path:
    for name in ("DUALSTREAM_CACHE_DIR", "NUMBA_CACHE_DIR"):
        if os.environ.get(name):
            return Path(os.environ[name])
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "dualstream"


def _platform() -> str:
    """What all kernels depend on, as the name of a folder."""
    parts = [
        str(sys.implementation.cache_tag),
        f"numba-{numba.__version__}",
        f"llvmlite-{llvmlite.__version__}",
        CPU,
        hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12],
    ]
    return "-".join([*parts, "boundscheck"] if _config.BOUNDSCHECK else parts)


def _cache_dir() -> Path | None:
    """Where compiled kernels are written; None without a home directory."""
    try:
        return _cache_root() / PLATFORM
    except RuntimeError as error:
        _warn_once(error)
        return None


def _source_of(function: Callable[..., Any], signature: Any, options: object) -> str:
    """Digest of all that the machine code of a kernel follows from; numba's key lacks most of it.

    These are its code, signature and options, and the globals that it reads: constants by their
    values, and kernels of any file by their own digests.
    """
    names, scope = function.__code__.co_names, function.__globals__
    globals_ = {name: _content(scope[name], names) for name in names if name in scope}
    fields = [getattr(one, "fields", ()) for one in signature.args]  # of named tuples
    # A compiled kernel names the modules of those that it calls.
    module, code = function.__module__, _content(function.__code__)
    facts = module, code, str(signature), fields, globals_, options
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _content(value: Any, names: Iterable[str] = ()) -> object:
    """What kernels can see of a global, or of a constant in their code; its repr is exact.

    names   for a module: those that may be read of it
    """
    if isinstance(value, Dispatcher):
        cache: Any = value._cache  # type: ignore[attr-defined]
        cache.is_called = True
        return cache.source
    if isinstance(value, CodeType):
        constants = [_content(one) for one in value.co_consts]
        return value.co_code, value.co_names, value.co_varnames, constants
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, int | float | np.number):
        return type(value), value
    if isinstance(value, type):
        return value, getattr(value, "_fields", ())
    if isinstance(value, _Intrinsic):
        return _content(value._defn.__code__)
    if value in (math, np):
        return value.__name__
    if isinstance(value, ModuleType):
        return {name: _content(getattr(value, name)) for name in names if hasattr(value, name)}
    if value is None or isinstance(value, str | tuple):
        return value
    raise TypeError(f"the key of a cached kernel does not cover a {type(value)}")


_ERRORS: list[Exception] = []
"""Errors of the cache so far."""
_UNWRITTEN: list[Exception] = []
"""Errors of writing into it."""


def _warn_once(error: Exception) -> None:
    if not _ERRORS:
        log.warning("the kernel cache failed, so kernels are compiled: %s", error)
    _ERRORS.append(error)


@functools.cache
def _explain_shipped() -> None:
    """Log once why kernels are compiled although the package has compiled ones."""
    # With all kernels of these sources, only a damaged one is missing, and that has been logged.
    if not _SHIPPED.is_dir() or (_SHIPPED / PLATFORM / _complete()).exists():
        return
    names = ", ".join(sorted(path.name for path in _SHIPPED.iterdir()))
    of = "other sources" if (_SHIPPED / PLATFORM).is_dir() else f"{names}, and this is {PLATFORM}"
    log.warning("kernels are compiled: those of the installed wheel are of %s", of)


def _folders() -> list[Path]:
    """Folders of compiled kernels, in the order in which they are read."""
    return [_SHIPPED / PLATFORM, *([] if _CACHE_DIR is None else [_CACHE_DIR])]


@functools.cache
def _complete() -> str:
    """Name of the file that says that a folder has all kernels; it has a digest of the sources."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return f"complete-{digest.hexdigest()[:32]}"


def is_complete() -> bool:
    """Are all kernels compiled? The first call reads all sources, for about 15 ms."""
    return DISABLED or any(os.path.exists(folder / _complete()) for folder in _folders())


def mark_complete() -> None:
    """Note that all kernels are compiled. Raises OSError if the cache cannot be written."""
    if cannot_write():
        raise OSError("the kernel cache cannot be written")
    open_lock(_complete()).close()


def cannot_write() -> bool:
    """Has this process failed to write a compiled kernel?"""
    return _CACHE_DIR is None or bool(_UNWRITTEN)


def open_lock(name: str = "lock") -> IO[bytes]:
    """A file of the cache folder, opened for writing. Raises OSError."""
    if _CACHE_DIR is None:
        raise OSError("there is no home directory")
    _CACHE_DIR.mkdir(parents=True, exist_ok=True)
    return open(_CACHE_DIR / name, "wb")


def no_action(name: str) -> None:
    """The default of `on_missing` and `on_made`."""


on_missing: Callable[[str], None] = no_action
"""Called with the name of a kernel that is in no cache, before it is compiled. It may fill the
cache by other processes."""
on_made: Callable[[str], None] = no_action
"""Called with the name of a kernel that has been compiled or loaded."""


_DIGEST_BYTES = 32
_dumps: Any = dumps
_compile_result: Any = compile_result


class _CachedLibrary(JITCodeLibrary):
    """Machine code from the cache. Its LLVM IR is parsed when a caller is compiled."""

    def __init__(self: Any, codegen: Any, name: str, machine_code: bytes, ir: bytes) -> None:
        JITCodeLibrary.__init__(self, codegen, name)  # type: ignore[no-untyped-call]
        self._ir = ir
        self.enable_object_caching()
        self._set_compiled_object(machine_code)
        self._finalize_final_module()

    def get_pointer_to_function(self: Any, name: str) -> Any:
        """Address of a function. Inner kernels have no entry from Python: 0."""
        return self._codegen._engine.get_function_address(name)

    def _get_module_for_linking(self: Any) -> Any:
        if self._shared_module is None:
            self._shared_module = llvm.parse_bitcode(self._ir)
        return self._shared_module


class _KernelCache(FunctionCache):
    """Cache of one kernel: a file with the digest of its content, and numba's pickle of the code.

    Every error of the cache is a miss. LLVM ends the process when it loads damaged code, so the
    digest is checked first.
    """

    def __init__(self, function: Callable[..., Any], source: str) -> None:
        self._py_func = function
        self._cache_path = str(_CACHE_DIR)  # for numba's statistics
        self.source = source
        self.file = Path()
        """File that the kernel was loaded from."""
        self.is_called = False
        """Does another kernel call it?"""

    def _file_name(self, signature: Any, codegen: Any) -> str:
        """Name of the kernel's file."""
        index_key: Any = self._index_key
        key = f"{self.source} {index_key(signature, codegen)}"
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        return f"{_name_of(self._py_func)}-{digest}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel; None if it is not in the cache."""
        name = self._file_name(sig, target_context.codegen())
        loaded = self._find(name, target_context)
        if loaded is None:
            _explain_shipped()
            on_missing(_name_of(self._py_func))
            # Other processes may have compiled it.
            loaded = self._find(name, target_context)
        return loaded

    def _find(self, name: str, context: Any) -> Any:
        """The compiled kernel of a file; None if no folder has it."""
        failure: Exception | None = None
        for folder in _folders():
            path = folder / name
            try:
                content = memoryview(path.read_bytes())
                digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
                if digest != _digest(path, code):
                    raise ValueError(f"{path} is damaged")
                loaded = self._loaded(context, code)
                self.file = path
                return loaded
            except (FileNotFoundError, NotADirectoryError):
                continue
            except Exception as error:
                failure = error
        # Not if a later folder has it: a damaged kernel of a wheel is compiled once.
        if failure is not None:
            _warn_once(failure)
        return None

    def _loaded(self, context: Any, code: memoryview) -> Any:
        """What numba's `CompileResult._rebuild` makes."""
        # Written by save_overload.
        (name, _, codes), function, env, signature, *_, envs = pickle.loads(code)  # noqa: S301
        codegen = context.codegen()
        library = _CachedLibrary(codegen, name, *codes)
        entry = context.get_executable(library, function, env)
        for one in envs:
            codegen.set_env(one.env_name, one)
        return _compile_result(
            target_context=context,
            typing_context=context.typing_context,
            entry_point=entry,
            fndesc=function,
            library=library,
            signature=signature,
            environment=env,
            objectmode=False,
        )

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the compiled kernel to a file."""
        assert not data.library.has_dynamic_globals  # pointers of this process
        if _CACHE_DIR is None:
            return
        *facts, _, reload_init, envs = data._reduce()
        # Without the text of the types, which nothing reads.
        code: bytes = _dumps((*facts, "", reload_init, envs))
        try:
            path = _CACHE_DIR / self._file_name(sig, data.codegen)
            path.parent.mkdir(parents=True, exist_ok=True)
            written = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
            try:
                written.write_bytes(_digest(path, code) + code)
                written.replace(path)
            finally:
                written.unlink(missing_ok=True)
        except OSError as error:
            _warn_once(error)
            _UNWRITTEN.append(error)


def copy_kernels(folder: Path) -> None:
    """Copy the kernels that this process has loaded, for a wheel.

    LLVM IR is left out where no kernel calls the kernel: it is most of the bytes.
    """
    for compiled in _KERNELS:
        cache = compiled._cache
        if not cache.file.name:  # its callers have its code
            continue
        path = folder / PLATFORM / cache.file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        code = cache.file.read_bytes()[_DIGEST_BYTES:]
        if not cache.is_called:
            (name, kind, (machine_code, _)), *facts = pickle.loads(code)  # noqa: S301
            code = _dumps(((name, kind, (machine_code, b"")), *facts))
        path.write_bytes(_digest(path, code) + code)
    (folder / PLATFORM / _complete()).touch()


def _name_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _digest(path: Path, code: bytes | memoryview) -> bytes:
    """Digest of a cached kernel; the file of another kernel has another one."""
    digest = hashlib.sha256(path.name.encode())
    digest.update(code)
    return digest.digest()


DISABLED: bool = _config.DISABLE_JIT
"""Whether kernels run as plain Python (NUMBA_DISABLE_JIT=1)."""

CPU = _pin_cpu()
"""LLVM's name of the CPU that kernels are compiled for."""
PLATFORM = _platform()
"""What all kernels depend on: kernels that were compiled with another numba are other ones."""
_SHIPPED = Path(__file__).with_name("kernels")
"""Folder of the compiled kernels of a wheel for one platform."""
_CACHE_DIR = None if DISABLED else _cache_dir()
_MAKING = threading.Lock()
_KERNELS: list[Any] = []

# Closures, array expressions and functions inlined by numba: kernels have none.
_UNNEEDED_PASSES = (InlineClosureLikes, InlineOverloads, NopythonRewrites)
# For garbage collection during a compilation. With Python's it takes a tenth of the CPU time.
_GARBAGE_THRESHOLDS = (100_000, 20, 100)


class _Compiler(CompilerBase):
    """numba's compiler without passes that kernels do not need."""

    def define_pipelines(self) -> list[Any]:
        builder: Any = DefaultPassBuilder
        passes = builder.define_nopython_pipeline(self.state)
        passes.passes = [one for one in passes.passes if one[0] not in _UNNEEDED_PASSES]
        passes.finalize()
        return [passes]


class _InnerCompiler(_Compiler):
    """The compiler of kernels that only kernels call."""

    def define_pipelines(self) -> list[Any]:
        state = self.state
        library: Any = _InnerLibrary
        state.library = library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()


class _InnerLibrary(JITCodeLibrary):
    """LLVM IR of an inner kernel. Its callers are optimised and compiled with it."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        # For callers, as numba's `_get_module_for_linking` makes it.
        self._shared_module = self._final_module.clone()
        for function in self._shared_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "linkonce_odr"
        for function in self._final_module.functions:
            if not function.is_declaration:
                function.linkage = "available_externally"
        super()._finalize_final_module()  # type: ignore[no-untyped-call]


def numba_type(annotation: Any) -> Any:
    """numba's type of an annotation."""
    if (metadata := getattr(annotation, "__metadata__", None)) is not None:
        return metadata[0]
    if (fields := getattr(annotation, "__args__", None)) is not None:
        return types.BaseTuple.from_types([numba_type(field) for field in fields])
    return _PLAIN_TYPES[annotation]


def _signature_of(function: Callable[..., Any]) -> Any:
    *arguments, result = map(numba_type, function.__annotations__.values())
    return result(*arguments)


@overload
def kernel(function: _Function, /) -> _Function: ...
@overload
def kernel(
    *, inline: bool = False, apart: bool = False, inner: bool | None = None
) -> Callable[[_Function], _Function]: ...
def kernel(
    plain: Any = None, /, *, inline: bool = False, apart: bool = False, inner: bool | None = None
) -> Any:
    """Compile a function for the types of its annotations.

    With `inline` the code is inlined into its callers: a call passes six numbers per array, and
    some tens of arrays cost more than a row. With `apart` the caller promises that arrays never
    overlap, which lets LLVM vectorize loops over several of them. With `inner` (default: `inline`)
    only kernels call it, and a call from Python is a TypeError: it has no entry from Python, which
    unpacks each array, and no machine code of its own.

    A kernel receives preallocated arrays and updates them in place. It allocates nothing, raises
    nothing and draws no random numbers. It may call kernels and read constants of any module.
    """

    is_inner = inline if inner is None else inner

    def compile_it(function: _Function) -> _Function:
        if DISABLED:
            return _as_python(function)
        signature = _signature_of(function)
        jit: Any = numba.njit
        # Without allocations no references need counting. numba's atomic reference counts for every
        # view of a row took a quarter of a portfolio's time.
        options = {"nogil": True, "error_model": "numpy", "_nrt": False}
        options |= {"no_cfunc_wrapper": True, "forceinline": inline}
        options |= {"noalias": True} if apart else {}
        options |= {"no_cpython_wrapper": is_inner}
        options |= {"pipeline_class": _InnerCompiler if is_inner else _Compiler}
        # Under a lock: modules are imported in threads.
        with _MAKING:
            thresholds = gc.get_threshold()
            gc.set_threshold(*_GARBAGE_THRESHOLDS)
            try:
                compiled = jit(**options)(function)
                source = _source_of(function, signature, (inline, apart, is_inner))
                compiled._cache = _KernelCache(function, source)
                if is_inner:
                    _compile_for_callers(compiled, signature)
                else:
                    compiled.compile(signature)
                compiled._can_compile = False
            finally:
                gc.set_threshold(*thresholds)
        _KERNELS.append(compiled)
        on_made(_name_of(function))
        return compiled  # type: ignore[no-any-return]

    return compile_it if plain is None else compile_it(plain)


def _compile_for_callers(compiled: Any, signature: Any) -> None:
    """Compile an inner kernel, or load it, when numba resolves a call of it in another kernel."""
    resolve = compiled.get_call_template

    def get_call_template(*types_: Any) -> Any:
        if not compiled.overloads:
            compiled._can_compile = True
            compiled.compile(signature)
            compiled._can_compile = False
            # Forget the entry that is not there: a call of it ends the process.
            compiled._clear()
        return resolve(*types_)

    compiled.get_call_template = get_call_template


def _as_python(function: _Function) -> _Function:
    """The Python function, with silent division and overflow like the compiled one."""

    @functools.wraps(function)
    def quiet(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return quiet  # type: ignore[return-value]


def compiled_count() -> int:
    """Number of kernels imported so far that were compiled because the cache lacked them."""
    return sum(sum(compiled.stats.cache_misses.values()) for compiled in list(_KERNELS))


def compiled_signatures() -> dict[str, int]:
    """Number of signatures per kernel: one, or none if only kernels call it and all are cached."""
    return {
        f"{compiled.__module__}.{compiled.__name__}": len(compiled.signatures)
        for compiled in _KERNELS
    }

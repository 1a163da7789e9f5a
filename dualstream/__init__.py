"""Public API of Dualstream: the HTTP client, and the learners without a server.

Names are imported on first use. `Client` and `AsyncClient` import neither NumPy nor numba;
`make_learner` and `Batch` need `pip install 'dualstream[server]'`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualstream.client import AsyncClient, Client
    from dualstream.solvers import Batch, make_learner

__version__ = "0.1.0.dev0"
__all__ = ["AsyncClient", "Batch", "Client", "__version__", "make_learner"]

_MODULES = {
    "AsyncClient": "dualstream.client",
    "Batch": "dualstream.solvers",
    "Client": "dualstream.client",
    "make_learner": "dualstream.solvers",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dualstream' has no attribute {name!r}")
    try:
        value = getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as missing:
        if missing.name not in ("numba", "numpy"):
            raise
        needs = f"{name} needs {missing.name}: pip install 'dualstream[server]'"
        raise ModuleNotFoundError(needs, name=missing.name) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Registry of the offline methods; each module is imported on first use.

A method is a class that takes a Problem, options and a seed, and has the attributes of Run. Its
module ends with `METHOD = Method(...)`. To add a method, add a module,
a line to FILES, and its options to options.py.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.offline.method import Method

FILES: Mapping[str, str] = {
    "dcd": "dcd",
    "mcpa": "cutting_plane",
    "ocas": "cutting_plane",
    "sdca": "sdca",
    "spdc": "spdc",
    "asdca": "asdca",
    "aspdc": "aspdc",
    "aspdc_i": "aspdc_i",
    "svrg": "svrg",
    "newton_l1": "newton_l1",
}
"""Method names and their modules in this package."""

METHODS = tuple(FILES)


def method_of(name: str) -> Method:
    """The method of this name; imports its module. Raises InvalidSpec."""
    if name not in FILES:
        raise InvalidSpec.not_one_of("/method", name, METHODS)
    module: Any = importlib.import_module(f"dualstream.solvers.offline.{FILES[name]}")
    method: Method = module.METHOD
    return method

"""A server that lacks kernels. The process that compiles them waits for its end instead.

Its lock is in TMPDIR: servers of other tests, and of the developer, lock the cache of kernels.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from dualstream.service.server import compile_kernels
from dualstream.solvers import jit


def _start(*arguments: str, **options: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], **options)


def _open_lock() -> IO[bytes]:
    return Path(os.environ["TMPDIR"], "lock").open("wb")


jit.is_complete = lambda: False
jit.open_lock = _open_lock
compile_kernels._start = _start

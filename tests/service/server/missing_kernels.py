"""A server that lacks kernels. The process that compiles them waits for its end instead."""

import subprocess
import sys

from dualstream.service.server import compile_kernels
from dualstream.solvers import jit


def _start(*arguments: str, **options: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], **options)


jit.is_complete = lambda: False
compile_kernels._start = _start

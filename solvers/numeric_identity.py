"""The numeric identity: what machines must share for equal rows to give equal bits of state."""

import functools
import hashlib
import math
import os
import struct

import numba

from dualstream.solvers import jit

APPLY_VERSION = 1
"""From the first release on, increase it whenever any bit of any state could change."""


@functools.cache
def numeric_identity() -> str:
    """Identifies all that two workers must have in common for bit-identical states.

    The apply version, the CPU that kernels are compiled for, the C library, and a digest of results
    of its functions on this machine: on CPUs without FMA the same version uses other code, and then
    log, expm1, cos and sin differ in their last bit.
    """
    library = os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else None
    name = f"{APPLY_VERSION} {jit.CPU} {library or 'unknown libc'} libm-{_libm_digest()}"
    return name + " svml" if getattr(numba.config, "USING_SVML", False) else name


def _libm_digest() -> str:
    points = [0.0625 + 0.0507 * i for i in range(512)]
    functions = (math.exp, math.log, math.log1p, math.expm1, math.tanh, math.cos, math.sin)
    values = [function(x) for function in functions for x in points]
    return hashlib.sha256(struct.pack(f"<{len(values)}d", *values)).hexdigest()[:8]

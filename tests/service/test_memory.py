"""What a process keeps of its memory."""

import ctypes
import resource

import pytest

from service.memory import keep_freed_blocks


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not the GNU C library")
def test_blocks_of_bodies_are_not_asked_of_the_kernel_again():
    keep_freed_blocks()

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        blocks = [b"1" * 1_000_000 for _ in range(3)]
        del blocks
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    faults()
    again = sum(faults() for _ in range(10))
    assert again < 10 * 3 * 1_000_000 / 4096 / 4, "a quarter of their pages"

"""The inputs that fuzzing has kept, once more: `make fuzz` looks for others."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.fuzz.corpus import CORPUS, ROOT, kept_inputs, replay
from tests.fuzz.guarded import Guarded, OutOfBounds, guarded
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_every_input_that_is_kept_is_read_or_refused(target: str):
    assert replay([target]) == len(kept_inputs(target)) > 0


def test_kernels_name_no_place_that_an_array_does_not_have():
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-m", "tests.fuzz.corpus", "replay"]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == sum(len(kept_inputs(target)) for target in TARGETS)


def test_what_is_kept_is_small():
    sizes = [path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(sizes) < 500_000


def test_an_index_from_the_end_is_refused():
    array = np.arange(4).view(Guarded)
    assert array[3] == 3 and array[np.uint8(1)] == 1
    for wrong in (-1, 4, np.int64(-1), slice(-2, 3), slice(0, 5)):
        with pytest.raises(OutOfBounds):
            array[wrong]
        with pytest.raises(OutOfBounds):
            array[wrong] = 0
    table = np.zeros((2, 3)).view(Guarded)
    table[1, 2] = 1.0
    with pytest.raises(OutOfBounds):
        table[1, -1]

    def last_of(given: np.ndarray) -> int:
        return int(given[len(given) - 1 - 4])

    with pytest.raises(OutOfBounds):
        guarded(last_of)(np.arange(4))

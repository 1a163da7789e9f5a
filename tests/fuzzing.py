"""How many examples property tests try: a sample in `make test`, many in `make fuzz`."""

import os

from hypothesis import HealthCheck, settings

SCALE = int(os.environ.get("DUALSTREAM_FUZZ_SCALE", "1"))


def examples(count: int) -> settings:
    """Settings for so many examples, times what `make fuzz` asks for."""
    return settings(
        max_examples=count * SCALE, deadline=None, suppress_health_check=list(HealthCheck)
    )

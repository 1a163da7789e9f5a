"""How many examples property tests try: a sample in `make test`, many in `make fuzz`."""

import os

from hypothesis import HealthCheck, settings

SCALE = int(os.environ.get("DUALSTREAM_FUZZ_SCALE", "1"))


def examples(count: int) -> settings:
    """Settings for `count` examples, scaled by `make fuzz`."""
    return settings(
        max_examples=count * SCALE, deadline=None, suppress_health_check=list(HealthCheck)
    )

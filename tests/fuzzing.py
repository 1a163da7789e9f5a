"""How many examples property tests try: half of them in `make test`, ten times in `make fuzz`."""

import os

from hypothesis import HealthCheck, settings

SCALE = float(os.environ.get("DUALSTREAM_FUZZ_SCALE", "0.5"))


def examples(count: int) -> settings:
    """Settings for `count` examples, times SCALE."""
    return settings(
        max_examples=int(count * SCALE), deadline=None, suppress_health_check=list(HealthCheck)
    )

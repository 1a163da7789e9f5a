"""How much property tests try: a fifth in `make test`, ten times as much in `make fuzz`."""

import os

from hypothesis import HealthCheck, settings

SCALE = float(os.environ.get("DUALSTREAM_FUZZ_SCALE", "0.2"))


def examples(count: int) -> settings:
    """Settings for `count` examples, times SCALE."""
    return settings(
        max_examples=int(count * SCALE), deadline=None, suppress_health_check=list(HealthCheck)
    )

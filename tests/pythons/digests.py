"""Digests of states after the same rows: python -m tests.pythons.digests

Prints JSON: the Python, the numeric identity, and the digest of one learner of each specification
of the contract suite. Needs the server's dependencies and no test tools.
"""

import json
import platform
import sys

from dualstream.solvers import make_learner, numeric_identity
from dualstream.solvers.protocols.checksummed_state import digest_of
from tests.solvers.specs import SPECS, stream

ROWS = 300


def digests() -> dict[str, str]:
    """SHA-256 of the state of each learner after ROWS rows."""
    result = {}
    for name, spec in SPECS.items():
        learner = make_learner(spec)
        learner.learn(stream(spec, ROWS))
        result[name] = digest_of(learner.state(), {})
    return result


if __name__ == "__main__":
    json.dump(
        {"python": platform.python_version(), "identity": numeric_identity(), "digests": digests()},
        sys.stdout,
    )

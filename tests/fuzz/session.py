"""One target under atheris: python -m tests.fuzz.session TARGET PLACE DIRECTORY... -FLAG=VALUE...

A failing input is left in PLACE/wrong. Flags and directories are libFuzzer's. Kernels run as plain
Python over guarded arrays.
"""

import os
import resource
import sys
import tempfile
from pathlib import Path

import atheris

# Modules whose branches the fuzzer sees.
SEEN = [
    *(
        "dualstream.service.codecs",
        "dualstream.wire.chunking",
        "dualstream.service.journal",
        "dualstream.service.api.late_labels",
        "dualstream.service.replica.state",
    ),
    *(
        "dualstream.solvers.rows.text",
        "dualstream.solvers.rows.text.libsvm",
        "dualstream.solvers.rows.batch",
        "dualstream.solvers.protocols.checksummed_state",
    ),
]
MORE_BYTES = 1 << 30
"""Memory that an input may add to the process, touched or not."""

with atheris.instrument_imports(include=SEEN):
    from tests.fuzz.guarded import guard_kernels
    from tests.fuzz.seeds import WORDS
    from tests.fuzz.targets import TARGETS, Input


def keeping(one_input: Input, place: Path) -> Input:
    """Keep the failing input: libFuzzer does not if the process ends during the input."""

    def run(data: bytes) -> None:
        try:
            one_input(data)
        except BaseException:
            (place / "wrong").write_bytes(data)
            raise

    return run


def main() -> None:
    name, path = sys.argv.pop(1), Path(sys.argv.pop(1))
    assert guard_kernels() > 0
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * os.sysconf("SC_PAGESIZE") + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.NamedTemporaryFile("w", suffix=".dict") as words:
        quoted = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in WORDS)
        words.writelines(f'"{word}"\n' for word in quoted)
        words.flush()
        one_input = keeping(TARGETS[name].one_input, path)
        atheris.Setup([*sys.argv, f"-dict={words.name}"], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

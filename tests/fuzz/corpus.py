"""Corpus of kept fuzzing inputs: python -m tests.fuzz.corpus shrink TARGET DIRECTORY... | replay

shrink   keeps inputs that add coverage, the smallest first, in tests/corpus/TARGET; prints their
         number, and the share of lines that they reach
replay   runs every kept input on its target
"""

import json
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from dualstream.solvers.jit import DISABLED
from tests.fuzz.guarded import guard_kernels
from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests/corpus"
LIMIT_S = 10
"""No input may take longer; of the process itself, as others may be busy."""

Way = tuple[str, int, int]


def kept_inputs(target: str) -> list[Path]:
    return sorted((CORPUS / target).iterdir()) if (CORPUS / target).is_dir() else []


def replay(targets: Iterable[str] = TARGETS) -> int:
    """Run every kept input; returns their number. Raises AssertionError for one that fails."""
    done = 0
    for target in targets:
        for path in kept_inputs(target):
            done += 1
            try:
                with time_limit():
                    TARGETS[target].one_input(path.read_bytes())
            except Exception as error:
                raise AssertionError(f"{path.relative_to(ROOT)}: {error!r}") from error
    return done


@contextmanager
def time_limit() -> Iterator[None]:
    def too_long(*_: Any) -> None:
        raise TimeoutError(f"an input takes longer than {LIMIT_S} s")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Ways:
    """Coverage of an input: pairs of consecutive lines in a target's files."""

    def __init__(self, target: Target) -> None:
        self._files = {str(ROOT / file): file for file in target.files}
        self.target = target
        self.ways: set[Way] = set()

    def of(self, data: bytes) -> set[Way]:
        self.ways = set()
        sys.settrace(self._enter)
        try:
            self.target.one_input(data)
        finally:
            sys.settrace(None)
        return self.ways

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        file = self._files.get(frame.f_code.co_filename)
        if file is None:
            return None
        before = 0
        result = self.ways

        def line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            result.add((file, before, frame.f_lineno))
            before = frame.f_lineno
            return line

        return line

    def all_lines(self) -> set[tuple[str, int]]:
        """Every line of a function in the target's files."""
        result: set[tuple[str, int]] = set()
        for path, file in self._files.items():
            for code in _functions(compile(Path(path).read_text(), path, "exec")):
                result |= {(file, line) for *_, line in code.co_lines() if line is not None}
                result.discard((file, code.co_firstlineno))
        return result


def _functions(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            # Class bodies run at import.
            if "__module__" not in const.co_names:
                yield const
            yield from _functions(const)


def shrink(name: str, directories: Iterable[Path]) -> dict[str, int]:
    """Keep a small set of inputs with the same coverage, greedily; returns its statistics."""
    ways = Ways(TARGETS[name])
    inputs = {path.read_bytes() for location in directories for path in location.iterdir()}
    inputs |= {path.read_bytes() for path in kept_inputs(name)} | set(SEEDS[name]())
    seen: set[Way] = set()
    kept = []
    for data in sorted(inputs, key=lambda data: (len(data), data)):
        new = ways.of(data) - seen
        if new:
            kept.append(data)
            seen |= new
    location = CORPUS / name
    location.mkdir(parents=True, exist_ok=True)
    names = {sha256(data).hexdigest()[:12]: data for data in kept}
    for path in kept_inputs(name):
        if path.name not in names:
            path.unlink()
    for digest, data in names.items():
        (location / digest).write_bytes(data)
    lines = {(file, line) for file, _, line in seen} & ways.all_lines()
    return {
        "given": len(inputs),
        "kept": len(kept),
        "bytes": sum(map(len, kept)),
        "lines": len(lines),
        "of": len(ways.all_lines()),
    }


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "shrink":
        result: Any = shrink(rest[0], map(Path, rest[1:]))
    else:
        if DISABLED:
            guard_kernels()
        result = replay()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

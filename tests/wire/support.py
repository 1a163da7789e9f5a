"""Chunks of a body that arrives in pieces."""

import asyncio

from dualstream.solvers.rows.text.count_lines import count_lines
from dualstream.wire.chunking import chunks
from dualstream.wire.chunking.chunks import CHUNKERS, chunks_of
from dualstream.wire.problem_json import Problem


def cut(kind: str, pieces: list[bytes], longest: int = 1000) -> list[chunks.Chunk]:
    results: list[chunks.Chunk] = []
    _cut_into(results, kind, pieces, longest)
    return results


def cut_until(
    kind: str, pieces: list[bytes], longest: int = 1000
) -> tuple[list[chunks.Chunk], bool]:
    """The chunks, and whether they are all there are: else those before a refusal."""
    results: list[chunks.Chunk] = []
    try:
        _cut_into(results, kind, pieces, longest)
    except Problem as problem:
        assert problem.status in (400, 413), problem
        return results, False
    return results, True


def _cut_into(result: list[chunks.Chunk], kind: str, pieces: list[bytes], longest: int) -> None:
    async def take() -> None:
        async def arriving():
            for piece in pieces:
                yield piece

        async for chunk in chunks_of(arriving(), CHUNKERS[kind](), longest, count_lines):
            result.append(chunk)

    asyncio.run(take())


def said(parsed) -> tuple[int, list[tuple[int, str, str, int]]]:
    return parsed.count, [(e.index, e.pointer, e.reason, e.line) for e in parsed.errors]

"""Compressed files are read whole, as `gzip -dc`, `xz -dc` and `zstd -dc` read them, or refused."""

import gzip
import lzma
import zlib

import pytest
import zstandard

from dualstream.client.errors import BadInput
from dualstream.client.resumable_files import RowFile, kind_of
from dualstream.service.codecs.decompress import Inflating
from dualstream.wire.problem_json import Problem

FIRST, SECOND = b"a,y\n" + b"1,1\n" * 70_000, b"2,0\n" * 70_000
SKIPPABLE = [bytes([0x50 + kind]) + b"\x2a\x4d\x18\x03\0\0\0abc" for kind in (0, 7, 15)]


def xz(rows: bytes) -> bytes:
    return lzma.compress(rows, preset=0)


PARTS = {
    ".gz": (gzip.compress(FIRST, 1), gzip.compress(SECOND, 1)),
    ".xz": (xz(FIRST), xz(SECOND)),
    ".zst": (zstandard.compress(FIRST), zstandard.compress(SECOND)),
}
WHOLE = {
    ".gz": lambda a, b: [a + b, a + b + bytes(512)],
    ".xz": lambda a, b: [a + b, a + bytes(4) + b, a + bytes(300_000) + b + bytes(8)],
    ".zst": lambda a, b: [
        a + b,
        *(skipped + a + b for skipped in SKIPPABLE),
        a + SKIPPABLE[1] + b,
        a + b + SKIPPABLE[0],
    ],
}
RUBBISH = [b"rubbish", b"\xfd7zXZ", b"\x01" * 100, b"\x1f\x8b", b"\x28\xb5\x2f\xfd"]


def read(path, content: bytes) -> bytes:
    path.write_bytes(content)
    pieces = [piece.content for piece in RowFile(str(path), kind_of(path.name)).pieces()]
    return pieces[0] + b"".join(piece.removeprefix(b"a,y\n") for piece in pieces[1:])


@pytest.mark.parametrize("ending", PARTS)
def test_all_parts_of_a_file_are_read(tmp_path, ending):
    path = tmp_path / f"rows.csv{ending}"
    for content in WHOLE[ending](*PARTS[ending]):
        assert read(path, content) == FIRST + SECOND


@pytest.mark.parametrize("ending", PARTS)
def test_what_follows_the_last_part_is_an_error(tmp_path, ending):
    path = tmp_path / f"rows.csv{ending}"
    first, second = PARTS[ending]
    wrong = [first + rubbish for rubbish in RUBBISH] + [first + second[:-5]]
    wrong += [first + bytes(3), first + bytes(3) + second] if ending == ".xz" else []
    for content in wrong:
        with pytest.raises(BadInput, match="damaged"):
            read(path, content)


@pytest.mark.parametrize(("encoding", "ending"), [("gzip", ".gz"), ("zstd", ".zst")])
@pytest.mark.parametrize("size", [3, 70_000, 10**9])
def test_a_body_is_read_whole_too(encoding, ending, size):
    def inflated(content: bytes) -> bytes:
        inflating = Inflating(encoding, 10**8)
        pieces = [content[at : at + size] for at in range(0, len(content), size)]
        result = b"".join(some for piece in pieces for some in inflating.pieces(piece))
        inflating.finish()
        return result

    first, second = PARTS[ending]
    for content in WHOLE[ending](first, second):
        if not (encoding == "gzip" and content.endswith(b"\0" * 512)):
            assert inflated(content) == FIRST + SECOND
    for rubbish in RUBBISH:
        with pytest.raises(Problem, match="is damaged|is truncated"):
            inflated(first + rubbish)


def test_bodies_of_zeros_after_gzip_are_no_rows():
    with pytest.raises((Problem, zlib.error)):
        inflating = Inflating("gzip", 10**8)
        list(inflating.pieces(PARTS[".gz"][0] + bytes(8)))

"""Long bodies are cut at the ends of rows, wherever and however their bytes arrive."""

import random
import struct
import tracemalloc

import pytest
from hypothesis import given, strategies as st

from dualstream.service.codecs import RowSchema, as_batch, parse_body, parse_chunk
from dualstream.service.codecs.csv import RecordReader
from dualstream.solvers import resolve_spec
from dualstream.wire.chunking import chunks
from dualstream.wire.chunking.buffer import ChunkBuffer
from dualstream.wire.chunking.chunks import CHUNKERS, MARK
from dualstream.wire.chunking.csv_records import RecordChunker, record_end
from dualstream.wire.problem_json import Problem
from tests.fuzzing import SCALE, examples
from tests.wire.support import cut, cut_until, said

ROW_SCHEMA = RowSchema(resolve_spec({"features": {"kind": "hashed", "bits": 10}}))
NDJSON, CSV = "application/x-ndjson", "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
# Small ones, so that all that can stand at an end does.
TOKENS = {
    NDJSON: ['{"x": {"a": 1}, "y": 1}', "\n", "\r\n", "\n\n", '{"x": "', "0"],
    CSV: ['"', '""', ",", "\n", "\r\n", "a", "1", "\r", '"x\ny"', ",1\n", '1,"a"\n'],
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 32)


@given(st.sampled_from([NDJSON, CSV]), st.integers(0, 2**32), st.booleans())
@examples(150)
def test_chunks_are_the_body_and_depend_on_nothing_else(kind, seed, marked):
    chance = random.Random(seed)
    tokens = [chance.choice(TOKENS[kind]) for _ in range(chance.randrange(80))]
    body = ("a,y\n" * (kind == CSV) + "".join(tokens)).encode()
    sent = MARK * marked + body
    cuts = sorted(chance.randint(0, len(sent)) for _ in range(chance.randrange(6)))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    result = cut(kind, pieces)
    assert result == cut(kind, [sent])
    header = body[:4] if kind == CSV else b""
    mine = [chunk.body.removeprefix(header) if chunk.number else chunk.body for chunk in result]
    assert b"".join(mine) == body
    assert [chunk.number for chunk in result] == list(range(len(result)))
    assert [chunk.ends for chunk in result][-1:] == ([len(sent)] if body else [])
    # The same rows, bad ones with the same reasons on the same lines.
    rows, errors = 0, []
    for chunk in result:
        count, bad = said(parse_chunk(ROW_SCHEMA, kind, chunk.body, labelled=True))
        errors += [(i + rows, pointer, why, n + chunk.line) for i, pointer, why, n in bad]
        rows += count
    assert (rows, errors) == said(parse_body(ROW_SCHEMA, kind, sent, labelled=True))


@given(st.integers(0, 2**32))
@examples(100)
def test_a_chunk_of_csv_ends_where_a_record_does(seed):
    chance = random.Random(seed)
    text = "a,y\n" + "".join(chance.choice(TOKENS[CSV]) for _ in range(60)) + '"\n,1\n'
    body, target = text.encode(), 32
    reader = RecordReader(ROW_SCHEMA, body, labelled=True)
    ends, p = [], 0
    while p < len(body):
        p = reader.end_of(p) + 1
        ends.append(p)
    end = record_end(body, 0, target, b",")
    within = [e for e in ends if e <= target]
    assert end in ends if end else not within
    if within:
        assert end == within[-1]


def test_what_a_chunk_holds():
    rows = b"".join(b"%02d 1:1\r\n" % k for k in range(9))
    result = cut("text/x-libsvm", [rows])
    assert [len(chunk.body) for chunk in result] == [32, 32, 8]
    assert [chunk.line for chunk in result] == [0, 4, 8]
    # One byte more than fits: the row goes to the next chunk, its last byte never alone.
    result = cut("text/x-libsvm", [b"0 1:1\n" + rows])
    assert [len(chunk.body) for chunk in result] == [30, 32, 16]
    assert [len(chunk.body) for chunk in cut("text/x-libsvm", [rows[:32]])] == [32]


def test_a_row_longer_than_a_chunk_is_one_alone_up_to_a_limit():
    long = b"1 1:1" + b" " * 60 + b"\n"
    result = cut("text/x-vw", [b"0 1:1\n", long, b"1 2:1\n"], 100)
    assert [chunk.body for chunk in result] == [b"0 1:1\n", long, b"1 2:1\n"]
    for pieces in ([long * 3], [long[:50], long[50:]], [b"x" * 70]):
        with pytest.raises(Problem) as refused:
            cut("text/x-vw", pieces, 60)
        assert refused.value.status == 413 and "more than 60" in refused.value.detail


@pytest.mark.parametrize("kind", ["application/x-ndjson", "text/csv"])
def test_a_row_without_an_end_is_refused_without_being_joined(kind):
    """What was looked at in vain is not copied for more of the same: others would wait for it."""
    piece, longest = b" " * 2**20, 32 * 2**20
    cutting = chunks.Chunking(CHUNKERS[kind](), longest, size=len(piece))
    tracemalloc.start()
    try:
        with pytest.raises(Problem, match="more than"):
            for _ in range(40):
                list(cutting.of(piece))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * 2**20


def test_each_chunk_has_the_header():
    body = b'\r\n"a\nb",y\n' + b"1,1\n" * 20
    first, *others = cut(CSV, [body])
    assert first.body.startswith(b"\r\n") and first.line == 0
    assert others and all(chunk.body.startswith(b'"a\nb",y\n1,1') for chunk in others)
    assert others[0].line == first.body.count(b"\n") - 2
    unended = b'"' + b"a" * 40
    assert RecordChunker().end_of(ChunkBuffer(unended), 32) == 0, "the header has not ended yet"


def test_arrow_is_chunked_after_record_batches(monkeypatch):
    """Each chunk has the dictionaries that stand at its place, be they replaced or added to."""
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1500)
    chance = random.Random(1)
    for deltas in (False, True):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
        schema = pa.schema([("c", pa.dictionary(pa.int32(), pa.string())), ("y", pa.int64())])
        words: list[str] = []
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            for _ in range(12):
                words = (words if deltas else []) + [f"w{chance.random()}"]
                positions = pa.array([chance.randrange(len(words)) for _ in range(9)], pa.int32())
                column = pa.DictionaryArray.from_arrays(positions, pa.array(words))
                writer.write_batch(pa.record_batch([column, pa.array([0, 1, 2] * 3)], schema))
        body = sink.getvalue().to_pybytes()
        result = cut(ARROW, [body[:700], body[700:5000], body[5000:]], 4000)
        assert result == cut(ARROW, [body], len(body)) and len(result) > 2
        whole = parse_body(ROW_SCHEMA, ARROW, body, labelled=True)
        parts = [parse_chunk(ROW_SCHEMA, ARROW, chunk.body, labelled=True) for chunk in result]
        one, joined = (
            as_batch([whole.rows]),
            as_batch([part.rows for part in parts if part.row_indices]),
        )
        for name in ("indptr", "indices", "values", "labels"):
            assert getattr(one, name).tolist() == getattr(joined, name).tolist(), name
        assert sum(len(part.errors) for part in parts) == len(whole.errors) == 36
        for index in range(0, len(body), int(7 / min(1, SCALE))):  # damage is refused, or is none
            broken = body[:index] + b"\xff" + body[index + 1 :]
            pieces = [broken[at : at + 900] for at in range(0, len(broken), 900)]
            assert cut_until(ARROW, pieces, 4000) == cut_until(ARROW, [broken], 4000)


@pytest.mark.parametrize("longest, most", [(1000, 1000), (1500, 1500), (9000, 2000)])
def test_a_chunk_of_arrow_takes_twice_as_much(monkeypatch, longest, most):
    """But no more than a record batch may: so much of a body is there when it is cut."""
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1000)
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"a": [1.0] * 8, "y": [1.0] * 8})
    ends = []
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(20):
            writer.write_batch(batch)
            ends.append(sink.tell())
    body = sink.getvalue().to_pybytes()
    whole = cut(ARROW, [body], longest)
    for step in (7, 300, 1100):
        pieces = [body[at : at + step] for at in range(0, len(body), step)]
        assert cut(ARROW, pieces, longest) == whole, step
    start = 0
    for chunk in whole[:-1]:
        assert chunk.ends == max(end for end in ends if end - start <= most)
        start = chunk.ends


def test_arrow_message_is_judged_by_its_head_alone():
    """Its table would be in the part of the body that has arrived, or not yet."""
    body = struct.pack("<III", 0xFFFFFFFF, 8, 40) + bytes(84)
    for step in (1, 32, 96):
        pieces = [body[at : at + step] for at in range(0, len(body), step)]
        assert cut_until(ARROW, pieces) == ([], False), step


@pytest.mark.parametrize("rest", [b'""', b'"a",', b"a"])
def test_a_long_row_is_not_looked_at_again_with_each_piece(monkeypatch, rest):
    class Counting(RecordChunker):
        looked_at = 0

        def end_of(self, held: ChunkBuffer, size: int) -> int:
            Counting.looked_at += held.size
            return super().end_of(held, size)

    monkeypatch.setitem(CHUNKERS, CSV, Counting)
    pieces = [b'a,y\n"' + rest * 20_000, *[rest * 100] * 1000]
    body = b"".join(pieces)
    result = cut(CSV, pieces, len(body))
    assert len(result) == 2 and result[-1].ends == len(body)
    assert Counting.looked_at <= 4 * len(body)

"""The record codec: what goes in comes out, damage is seen, and the format stands still."""

import hashlib

import google_crc32c
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from dualstream.service.journal.record import (
    Control,
    CorruptRecord,
    KeyKind,
    RecordError,
    Rows,
    UnknownRecord,
    decode,
    decode_merged,
    encode_control,
    encode_opening,
    encode_rows,
    encode_sample,
    format as _format,
    kernels as _kernels,
    make_key,
)
from dualstream.solvers.rows.shared_ones import are_shared_ones
from tests.fuzzing import examples
from tests.service.journal.support import COLUMNS, assert_merged, assert_same, same_bits, singles

FINGERPRINT = bytes(range(16))

ones = st.just(1.0)
doubles = st.floats()
numbers = st.sampled_from([ones, singles, doubles]).flatmap(lambda kind: st.lists(kind, max_size=6))
texts = st.text(max_size=6) | st.text(min_size=300, max_size=301)
keys = st.builds(make_key, st.sampled_from(KeyKind), st.text(min_size=1, max_size=20))


def exactly(count: int, numbers: st.SearchStrategy) -> st.SearchStrategy[list]:
    return st.lists(numbers, min_size=count, max_size=count)


def column(draw, count: int) -> list[float]:
    return draw(st.sampled_from([ones, singles, doubles]).flatmap(lambda of: exactly(count, of)))


@st.composite
def rows(draw) -> Rows:
    """Rows with any columns; weights of all ones are left out, as decoding leaves them out."""
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=12))
    if draw(st.booleans()):
        lengths = lengths[:1] * len(lengths)
    count, nnz = len(lengths), sum(lengths)
    top = draw(st.sampled_from([255, 65535, 2**31 - 1]))
    indices = draw(exactly(nnz, st.integers(0, top)))
    if draw(st.booleans()):
        indices = [index for length in lengths for index in range(length)]
    signs = exactly(count, st.sampled_from([-1.0, 1.0]))
    kinds = (signs, exactly(count, singles), exactly(count, doubles))
    labels, earlier = draw(st.none() | st.one_of(kinds) | exactly(count, texts)), None
    if labels is not None and draw(st.booleans()):
        label = texts if isinstance(labels[0], str) else draw(st.sampled_from([singles, doubles]))
        label = label.filter(lambda y: y == y)  # compared as Python numbers
        pairs = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), label), max_size=3)
        earlier = draw(exactly(count, pairs).filter(any))
    weights = draw(st.none() | exactly(count, singles) | exactly(count, doubles))
    if weights is not None and all(weight == 1.0 for weight in weights):
        weights = None
    return Rows(
        indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        indices=np.array(indices, np.int32),
        values=np.array(column(draw, nnz), np.float64),
        labels=labels if labels is None or isinstance(labels[0], str) else np.array(labels),
        weights=None if weights is None else np.array(weights),
        ids=draw(st.none() | exactly(count, texts)),
        served_scores=draw(st.none() | exactly(count, doubles).map(np.array)),
        served_seqs=draw(
            st.none() | exactly(count, st.integers(-(2**63), 2**63 - 1)).map(np.array)
        ),
        names=tuple(draw(st.lists(st.tuples(st.integers(0, 2**31 - 1), texts), max_size=3))),
        served_parts=draw(
            st.none() | exactly(3 * count, doubles).map(lambda of: np.array(of).reshape(-1, 3))
        ),
        earlier=earlier,
    )


def encoded(rows: Rows, **header) -> bytes:
    return encode_rows(
        rows.indptr,
        rows.indices,
        rows.values,
        rows.labels,
        **{name: getattr(rows, name) for name in COLUMNS[1:]},
        names=rows.names,
        **header,
    )


@given(rows(), st.none() | keys, st.none() | st.just(FINGERPRINT), st.booleans())
def test_rows_come_back_to_the_bit(rows, key, fingerprint, continues):
    body = encoded(rows, key=key, fingerprint=fingerprint, continues=continues)
    [(header, got)] = decode(body)
    assert_same(got, rows)
    assert (header.count, header.key, header.fingerprint, header.continues) == (
        len(rows),
        key,
        fingerprint,
        continues,
    )


fields = st.dictionaries(
    st.text(max_size=8),
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | doubles
    | st.text()
    | st.binary(),
    max_size=4,
)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
arrays = st.dictionaries(
    st.text(max_size=8),
    shapes.flatmap(
        lambda shape: exactly(int(np.prod(shape)), doubles).map(
            lambda numbers: np.array(numbers, np.float64).reshape(shape)
        )
    ),
    max_size=3,
)


@given(st.text(max_size=20), fields, arrays, st.none() | keys, st.booleans())
def test_controls_come_back_to_the_bit(kind, fields, arrays, key, continues):
    body = encode_control(kind, fields, arrays, key=key, continues=continues)
    [(header, control)] = decode(body)
    assert isinstance(control, Control)
    assert control.kind == kind
    assert same_bits(control.fields, fields)
    assert sorted(control.arrays) == sorted(arrays)
    for name, array in arrays.items():
        assert control.arrays[name].shape == array.shape
        assert control.arrays[name].tobytes() == array.tobytes()
    assert (header.count, header.key, header.continues) == (1, key, continues)


def test_an_opening_is_an_empty_part():
    key = make_key(KeyKind.REQUEST, "clé")
    [(header, content)] = decode(encode_opening(key, FINGERPRINT))
    assert (header.count, header.key, header.fingerprint) == (0, key, FINGERPRINT)
    assert content is None


@given(rows())
def test_a_row_has_the_same_bytes_alone_and_out_of_larger_arrays(rows):
    indptr = rows.indptr
    for row in range(len(rows)):
        columns = {name: getattr(rows, name) for name in COLUMNS}
        cut = {name: c if c is None else c[row : row + 1] for name, c in columns.items()}
        from_arrays = encode_rows(indptr[row : row + 2], rows.indices, rows.values, **cut)
        start, end = indptr[row], indptr[row + 1]
        lists = {name: listed(c) for name, c in cut.items()}
        indices, values = rows.indices[start:end].tolist(), rows.values[start:end].tolist()
        assert encode_rows([0, end - start], indices, values, **lists) == from_arrays
        [(_, got)] = decode(from_arrays)
        assert got.indices.tolist() == indices
        assert got.values.tobytes() == rows.values[start:end].tobytes()


@examples(50)
@given(rows(), keys, st.booleans())
def test_a_sample_has_the_bytes_of_a_row_and_their_digest_without_key_and_names(
    rows, key, continues
):
    for row in range(len(rows)):
        labels = [1.0] if rows.labels is None else listed(rows.labels[row : row + 1])
        weights = [1.0] if rows.weights is None else listed(rows.weights[row : row + 1])
        columns = (rows.indptr[row : row + 2], rows.indices, rows.values, labels)
        given = {"key": key, "continues": continues, "names": rows.names}
        body, fingerprint = encode_sample(*columns, weights=weights, **given)
        plain = encode_rows(*columns, weights=weights)
        assert fingerprint == hashlib.sha256(plain).digest()[:16]
        assert body == encode_rows(*columns, weights=weights, fingerprint=fingerprint, **given)


def listed(column):
    return column.tolist() if isinstance(column, np.ndarray) else column


def test_a_long_row_has_the_bytes_of_a_short_one_in_every_column():
    """Short rows take another way through the encoder; the kinds of column must be the same."""
    for indices in ([0, 1, 2], [5, 255], [5, 256], [5, 65535], [5, 65536], [2**31 - 1]):
        for value in (1.0, 0.5, 0.1, 1e300, float("nan"), float("inf"), -0.0, 1e-50):
            short = encode_rows([0, len(indices)], indices, [value] * len(indices))
            twice = encode_rows(
                [0, len(indices)] * 1 + [2 * len(indices)], indices * 2, [value] * 2 * len(indices)
            )
            assert short[2:4] == twice[2:4], (indices, value)


def test_absent_values_are_ones():
    assert encode_rows([0, 2], [3, 5], None, [1.0]) == encode_rows(
        [0, 2], [3, 5], [1.0, 1.0], [1.0]
    )
    many = list(range(1000))
    body = encode_rows([0, 1000], many, labels=[1.0])
    assert body == encode_rows([0, 1000], many, [1.0] * 1000, [1.0])
    [(_, read)], (_, [merged]) = decode(body), decode_merged(body)
    assert are_shared_ones(read.values) and are_shared_ones(merged.values)
    assert read.values.tolist() == merged.values.tolist() == [1.0] * 1000


@given(st.lists(st.tuples(rows(), st.none() | keys, st.booleans()), min_size=1, max_size=6))
def test_a_body_reads_the_same_merged_and_part_by_part(parts):
    body = b"".join(encoded(rows, key=key, continues=flag) for rows, key, flag in parts)
    control = encode_control("pause", {"reason": "drift"})
    assert_merged(body)
    assert_merged(body + control + body)


@given(st.lists(rows(), min_size=1, max_size=4), st.integers(2, 5))
def test_runs_of_single_rows_read_the_same_merged_and_part_by_part(several, times):
    bodies = []
    for rows in several:
        for row in range(len(rows)):
            columns = {name: getattr(rows, name) for name in COLUMNS}
            cut = {name: c if c is None else c[row : row + 1] for name, c in columns.items()}
            part = encode_rows(rows.indptr[row : row + 2], rows.indices, rows.values, **cut)
            bodies += [part] * times
    assert_merged(b"".join(bodies))


def test_nothing_reads_as_nothing():
    assert_merged(b"")


def test_name_pairs_of_all_parts_ride_along_when_merged():
    body = b"".join(
        encode_rows([0, 1], [index], names=[(index, f"name {index}")]) for index in range(3)
    )
    _, [block] = decode_merged(body)
    assert block.names == ((0, "name 0"), (1, "name 1"), (2, "name 2"))


# The layout in bytes: these must never change, or old journals cannot be read.
GOLDEN = {
    "one row of a9a": (
        lambda: encode_rows([0, 3], [2, 10, 122], [1.0] * 3, [1.0]),
        "0100400010000103020a7a013ded513b",
    ),
    "two rows": (
        lambda: encode_rows([0, 2, 3], [1, 300, 7], [0.5, 2.0, -1.0], [-1.0, 1.0]),
        "01005400200002020101002c0107000000003f00000040000080bf02b9cc275e",
    ),
    "a dense row in float64": (
        lambda: encode_rows([0, 2], [0, 1], [0.1, 3.0], [0.1], weights=[2.0]),
        ("0100ec02280001029a9999999999b93f00000000000008409a9999999999b93f000000402ed64677"),
    ),
    "wide indices": (
        lambda: encode_rows([0, 1], [70000], [1.0], [2.5]),
        "01008800140001017011010000002040643669d4",
    ),
    "equal lengths": (
        lambda: encode_rows(range(6), [9, 8, 7, 6, 5]),
        "01000300140005010000000908070605fb1e62af",
    ),
    "classes": (
        lambda: encode_rows([0, 0, 0, 0], [], [], ["b", "\u00e9", "b"]),
        "01000001190003000000010201010262c3a90001006f490fb6",
    ),
    "every rare column": (
        lambda: encode_rows(
            [0, 1],
            [3],
            [1.0],
            [1.0],
            ids=["id"],
            served_scores=[0.25],
            served_seqs=[258],
            names=[(3, "n")],
            key=make_key(KeyKind.LABEL, "id"),
            fingerprint=FINGERPRINT,
            continues=True,
        ),
        (
            "010e40784200010300046964000102030405060708090a0b0c0d0e0f01030101026964"
            "000000000000d03f0201000000000000010000000300000001016eae716e8e"
        ),
    ),
    "labels that replace others": (
        lambda: encode_rows(
            [0, 1, 1], [3], [1.0], [1.0, -1.0], earlier=[[(7, -1.0)], [(-1, 0.5), (3, 1.0)]]
        ),
        (
            "010040013700020100030101010202000080bf0000003f0000803f0700000000000000"
            "ffffffffffffffff0300000000000000ffd9cc27"
        ),
    ),
    "a class that replaces another": (
        lambda: encode_rows([0, 1], [3], [1.0], ["b"], earlier=[[(7, "a")]]),
        "010040012400010103040101010162000104010101016100070000000000000083c7a9ea",
    ),
    "an opening": (
        lambda: encode_opening(make_key(KeyKind.REQUEST, "k"), FINGERPRINT),
        "010600001f00000200016b000102030405060708090a0b0c0d0e0fff208670",
    ),
    "a control": (
        lambda: encode_control(
            "refit",
            {"method": "dcd", "at": 7},
            {"w": np.array([[1.0, -2.0]]), "b": np.array(0.5)},
            key=make_key(KeyKind.REFIT, "7"),
        ),
        (
            "01030000500001020005370572656669741000000082a2617407a66d6574686f64a364"
            "636402016200000000000000e03f0177020100000002000000000000000000f03f0000"
            "0000000000c02e21f697"
        ),
    ),
    "a wide part": (
        lambda: encode_rows([0] * 301, [], [], None, weights=None),
        "011000003c0100002c010000" + "00" * 300 + "6a06928b",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_layout_is_unchanged(name):
    encode, golden = GOLDEN[name]
    assert encode().hex() == golden
    decode(bytes.fromhex(golden))


def test_a_row_of_a9a_takes_27_bytes():
    indices = [3, 10, 13, 18, 38, 39, 51, 63, 66, 71, 74, 75, 79, 122]
    assert len(encode_rows([0, 14], indices, [1.0] * 14, [-1.0])) == 27


bodies = st.builds(encoded, rows()) | st.builds(encode_control, st.just("refit"), fields, arrays)


@given(bodies, st.data())
def test_a_cut_body_is_corrupt(body, data):
    cut = body[: data.draw(st.integers(1, len(body) - 1))]
    for read in (decode, decode_merged):
        with pytest.raises(CorruptRecord):
            read(cut)


@given(bodies, st.data())
def test_a_flipped_bit_is_seen(body, data):
    bit = data.draw(st.integers(0, 8 * len(body) - 1))
    flipped = bytearray(body)
    flipped[bit // 8] ^= 1 << bit % 8
    for read in (decode, decode_merged):
        with pytest.raises(UnknownRecord if bit < 8 else CorruptRecord):
            read(bytes(flipped))


@pytest.mark.parametrize("place", range(3))
def test_a_flipped_bit_of_a_large_part_is_seen(place):
    large = encode_rows(range(0, 601, 2), range(600), None, [1.0] * 300)
    small = encode_rows([0, 1], [3])
    assert len(large) > _kernels.LARGE + 4 > len(small)
    before, later = small * (place % 2), (large + small) * (20 * (place // 2))
    assert len(decode_merged(before + large + later)[0]) == 1 + place % 2 + 40 * (place // 2)
    for bit in (*range(8, 80), *range(80, 8 * len(large), 97), 8 * len(large) - 1):
        flipped = bytearray(large)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            decode_merged(before + bytes(flipped) + later)


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage):
    assume(garbage)
    for read in (decode, decode_merged):
        with pytest.raises(RecordError):
            read(garbage)


@examples(300)
@given(bodies, st.data())
def test_damage_under_a_right_checksum_raises_nothing_else(body, data):
    """What a fuzzer that mends checksums would find."""
    damaged = bytearray(body[:-4])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(1, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    mended = with_checksum(bytes(damaged))
    for read in (decode, decode_merged):
        for times in (1, 3):
            try:
                read(mended * times)
            except RecordError:
                pass


def with_checksum(body: bytes) -> bytes:
    return body + google_crc32c.value(body).to_bytes(4, "little")


PLAIN = encode_rows([0, 2], [3, 5], [0.5, 0.5], [1.0])[:-4]
HALF = encode_rows([0, 2], [3, 5], [0.5, 0.5], [0.5])[:-4]
KEYED = encode_rows([0, 1], [3], key=make_key(KeyKind.SAMPLE, "a"))[:-4]


@pytest.mark.parametrize(
    ("body", "at", "value", "names"),
    [
        (PLAIN, 0, 2, "version 2"),
        (PLAIN, 1, 0x20, "flags 0x20"),
        (PLAIN, 2, 0x3 << 4 | PLAIN[2] & 0xF, "kind 3"),
        (HALF, 3, 0x1, "labels of kind 6"),
        (PLAIN, 3, 0x6, "kind 3"),
        (KEYED, 9, 8, "key kind 8"),
    ],
)
def test_what_is_not_known_is_named(body, at, value, names):
    body = with_checksum(body[:at] + bytes([value]) + body[at + 1 :])
    for read in (decode, decode_merged):
        with pytest.raises(UnknownRecord, match=names):
            read(body)
        with pytest.raises(UnknownRecord, match=names):
            read(body * 3)


def test_a_few_bytes_do_not_claim_much_memory():
    """Columns without bytes for each row, of which a forged header claims billions."""
    equal_lengths = bytes([1, 16, 3, 0]) + (20).to_bytes(4, "little") + b"\xff" * 8
    run = bytes([1, 0, 14, 0, 16, 0, 1]) + b"\xff\xff\xff\x7f\x00"
    for body in (equal_lengths, run):
        with pytest.raises(CorruptRecord):
            decode(with_checksum(body))


def test_an_array_of_no_numbers_in_dimensions_beyond_all_memory_is_corrupt():
    shape = [0, *[2**32 - 1] * 4]
    body = encode_control("refit", {}, {"a": np.zeros((0, *[1] * 4))})[:-4]
    lengths = [(1).to_bytes(4, "little") * 4, b"\xff" * 16]
    assert body.endswith(lengths[0])
    forged = with_checksum(body.removesuffix(lengths[0]) + lengths[1])
    for read in (decode, decode_merged):
        with pytest.raises(CorruptRecord, match=f"shape .{shape[0]}, {shape[1]}"):
            read(forged)


@pytest.mark.parametrize(
    "encode",
    [
        lambda: encode_rows([0], []),
        lambda: encode_rows([0, 1], [-1]),
        lambda: encode_rows([0, 1], [2**31]),
        lambda: encode_rows([0, 100], [2**31] * 100),
        lambda: encode_rows([0, 100], [-1] * 100),
        lambda: encode_rows([0, 1], [1], key=b"\x09a"),
        lambda: encode_rows([0, 1], [1], key=b""),
        lambda: encode_rows([0, 1], [1], fingerprint=b"short"),
        lambda: encode_control("k" * 256),
    ],
)
def test_what_has_no_place_in_the_layout_is_not_encoded(encode):
    with pytest.raises(ValueError):
        encode()


@given(st.binary(max_size=100), st.integers(0, 8))
def test_the_checksum_of_the_kernel_is_crc32c(data, skipped):
    start = min(skipped, len(data))
    result = _kernels.crc32c(np.frombuffer(data, np.uint8), start, len(data), _kernels.CRC_TABLES)
    assert result == google_crc32c.value(data[start:])


def test_key_kinds_have_no_gaps_as_the_kernels_check_only_a_range():
    assert set(range(1, max(_format.KEY_KINDS) + 1)) == _format.KEY_KINDS


def test_rows_in_every_kind_of_column_are_read_by_the_kernels():
    """Else the tests above would hold one slow way against itself."""
    plain = [
        encode_rows([0, 2, 3], [1, top, 7], [value] * 3, [label] * 2, weights=[weight] * 2)
        for top in (200, 300, 70_000)
        for value in (1.0, 0.5, 0.1)
        for label in (1.0, 0.5, 0.1)
        for weight in (1.0, 0.5, 0.1)
    ]
    plain.append(encode_rows(range(7), range(6), None, [1.0] * 6))
    plain.append(encode_rows([0, 300], range(300), [0.5] * 300, [1.0], key=b"\x01k"))
    plain.append(encode_rows([0] * 301, [], [], [1.0] * 300, fingerprint=FINGERPRINT))
    parts, _ = decode_merged(b"".join(plain))
    assert [is_plain for _, _, is_plain in parts.runs()] == [True]
    text = encode_rows([0, 1], [3], [1.0], ["class"]) + encode_rows([0, 1], [3], names=[(3, "n")])
    parts, _ = decode_merged(text + encode_control("pause") + encode_opening(b"\x01k"))
    assert list(parts.runs()) == [(0, 3, False), (3, 4, True)]

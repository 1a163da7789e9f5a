"""MurmurHash3 x86 32 against published values and a plain Python version; rows of names."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dualstream.solvers import Batch, InvalidRow
from dualstream.solvers.rows.hashing import NameIndices, hash_names, hash_row

# Seed 0, as published with several implementations of Appleby's reference code.
KNOWN = {
    "": 0x00000000,
    "a": 0x3C2569B2,
    "abc": 0xB3DD93FA,
    "test": 0xBA6BD213,
    "hello": 0x248BFA47,
    "hello, world": 0x149BBB7F,
    "Hello, world!": 0xC0363E43,
    "The quick brown fox jumps over the lazy dog": 0x2E4FF723,
}


def murmur3(data: bytes) -> int:
    """The reference algorithm, in Python's own integers."""
    mask, h = 0xFFFFFFFF, 0
    for block in range(len(data) // 4):
        k = int.from_bytes(data[4 * block : 4 * block + 4], "little") * 0xCC9E2D51 & mask
        k = (k << 15 | k >> 17) & mask
        h ^= k * 0x1B873593 & mask
        h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & mask
    k = int.from_bytes(data[len(data) // 4 * 4 :], "little") * 0xCC9E2D51 & mask
    h ^= ((k << 15 | k >> 17) & mask) * 0x1B873593 & mask
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    return h ^ h >> 16


def test_published_hashes_are_met():
    positions = hash_names(list(KNOWN), 28)
    assert positions.tolist() == [h % 2**28 for h in KNOWN.values()]
    assert all(murmur3(name.encode()) == h for name, h in KNOWN.items())


@given(st.lists(st.text(max_size=40), max_size=20), st.integers(1, 28))
def test_any_names_hash_as_the_reference_does(names, bits):
    expected = [murmur3(name.encode("utf-8", "surrogatepass")) % 2**bits for name in names]
    assert hash_names(names, bits).tolist() == expected
    positions = NameIndices(bits, remembered=3)
    assert [positions[name] for name in names] == expected
    assert len(positions) <= 3


def test_a_row_of_names_holds_numbers_strings_and_bools():
    positions = NameIndices(18)
    x = {"age": 39, "city": "Oslo", "member": True, "gone": False, "zero": -0.0}
    row = {positions["age"]: 39.0, positions["city=Oslo"]: 1.0, positions["member"]: 1.0}
    assert hash_row(x, positions) == (sorted(row), [row[position] for position in sorted(row)])


def test_names_at_one_place_are_added_in_their_order():
    positions = NameIndices(1)
    same = [name for name in map(str, range(50)) if positions[name] == 0][:3]
    numbers = dict(zip(same, (1e16, 1.0, -1e16), strict=True))
    assert hash_row(numbers, positions) == ([], [])
    turned = {same[0]: 1e16, same[2]: -1e16, same[1]: 1.0}
    assert hash_row(turned, positions) == ([0], [1.0])


def test_equal_indices_of_a_batch_are_added_in_their_order():
    rows = ([0, 3, 5, 5], [4, 1, 4, 2, 2], [1e16, 5.0, 1.0, 3.0, -3.0])
    batch = Batch.from_csr(*rows, dim=5, sum_duplicates=True)
    assert batch.indptr.tolist() == [0, 2, 2, 2]
    assert batch.indices.tolist() == [1, 4]
    assert batch.values.tolist() == [5.0, 1e16 + 1.0]
    with pytest.raises(InvalidRow, match="index 5 is duplicated"):
        Batch.from_csr(*rows, dim=5)


@pytest.mark.parametrize("pair", [(np.inf, -np.inf), (1e101, -1e101), (1e100, 1e100)])
def test_a_sum_of_bad_numbers_is_no_good_number(pair):
    with pytest.raises(InvalidRow, match="index 3 is not finite or beyond 1e100"):
        Batch.from_csr([0, 2], [2, 2], pair, dim=5, sum_duplicates=True)


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.floats(-9, 9)), max_size=40), max_size=5))
def test_summed_rows_equal_plain_sums(rows):
    indptr = np.cumsum([0] + [len(row) for row in rows])
    flat = [pair for row in rows for pair in row]
    batch = Batch.from_csr(
        indptr, [j for j, _ in flat], [x for _, x in flat], dim=6, sum_duplicates=True
    )
    for i, row in enumerate(rows):
        sums = {}
        for j, x in row:
            sums[j] = sums[j] + x if j in sums else x
        begin, end = batch.indptr[i : i + 2]
        result = zip(batch.indices[begin:end], batch.values[begin:end], strict=True)
        assert dict(result) == {j: x for j, x in sums.items() if x != 0.0}

"""State format: deterministic bytes, readable by other programs, damage is refused."""

import hashlib
import json

import numpy as np
import pytest

from dualstream.solvers import CorruptState, dump, load, make_learner

ARRAYS = {
    "z": np.arange(3.0),
    "a": np.array(7, np.int64),
    "m": np.array([[True, False]]),
    "bytes": np.arange(5, dtype=np.uint8),
    "empty": np.empty((0, 2)),
    "small": np.array([1.5], np.float32),
    "index": np.array([1, 2], np.int32),
    "nan": np.array([np.nan, -0.0, np.inf]),
}


def test_what_is_dumped_is_loaded():
    arrays, metadata = load(dump(ARRAYS, {"seq": "12", "é": "ü"}))
    assert metadata == {"seq": "12", "é": "ü"}
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype and arrays[name].shape == array.shape
        assert arrays[name].tobytes() == array.tobytes()
        assert arrays[name].flags.writeable


def test_equal_states_are_equal_bytes_in_any_order():
    backwards = dict(reversed(ARRAYS.items()))
    assert dump(backwards, {"b": "1", "a": "2"}) == dump(ARRAYS, {"a": "2", "b": "1"})
    assert dump(ARRAYS, {"a": "2"}) != dump(ARRAYS, {"a": "3"})


def test_views_are_dumped_as_what_they_show():
    column = np.arange(12.0).reshape(4, 3)[:, 1]
    np.testing.assert_array_equal(load(dump({"x": column}, {}))[0]["x"], column)


def test_the_safetensors_library_reads_it(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    numpy = pytest.importorskip("safetensors.numpy")
    content = dump(ARRAYS, {"seq": "12"})
    path = tmp_path / "state.safetensors"
    path.write_bytes(content)
    result = numpy.load(content)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(result[name], array)
    with safetensors.safe_open(path, "np") as opened:
        assert opened.metadata()["seq"] == "12"


def test_any_changed_byte_is_noticed():
    content = dump({"x": np.arange(4.0)}, {"seq": "1"})
    for index in range(len(content)):
        damaged = bytearray(content)
        damaged[index] ^= 1
        with pytest.raises(CorruptState):
            load(bytes(damaged))


@pytest.mark.parametrize("cut", [0, 4, 8, 40, -1])
def test_a_cut_off_state_is_refused(cut):
    with pytest.raises(CorruptState):
        load(dump(ARRAYS, {})[:cut])


def test_another_format_is_refused_by_name():
    content = dump({}, {}).replace(b'"dualstream_format":"1"', b'"dualstream_format":"2"')
    with pytest.raises(CorruptState, match="a state of format 2; this version reads 1"):
        load(content)


@pytest.mark.parametrize("seq", [3, [72, 120], None, {"at": "3"}])
def test_metadata_that_are_no_strings_are_refused(seq):
    content = dump({"x": np.arange(4.0)}, {"seq": seq})
    with pytest.raises(CorruptState, match="its seq is not a string"):
        load(content)


def test_safetensors_of_others_are_refused():
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    with pytest.raises(CorruptState, match="not a state"):
        load(len(header).to_bytes(8, "little") + header)


def signed(header: bytes, data: bytes) -> bytes:
    """Bytes that `dump` did not write, with a correct digest."""
    empty = b'"sha256":"' + b"0" * 64
    header = header.replace(b'"sha256":""', empty + b'"')
    content = len(header).to_bytes(8, "little") + header
    digest = hashlib.sha256(content + data).hexdigest().encode()
    return content.replace(b"0" * 64, digest) + data


@pytest.mark.parametrize(
    "entry",
    [
        '{"dtype":"F64","shape":[1],"data_offsets":[0,7]}',
        '{"dtype":"F64","shape":[2],"data_offsets":[0,8]}',
        '{"dtype":"F64","shape":[-1],"data_offsets":[0,8]}',
        '{"dtype":"F64","shape":[1],"data_offsets":[-8,0]}',
        '{"dtype":"F64","shape":[1],"data_offsets":[4,12]}',
        '{"dtype":"F64","shape":["1"],"data_offsets":[0,8]}',
        '{"dtype":"F64","shape":1,"data_offsets":[0,8]}',
        '{"dtype":"F16","shape":[4],"data_offsets":[0,8]}',
        '{"dtype":"F64","data_offsets":[0,8]}',
        "[]",
        "7",
    ],
)
def test_arrays_that_are_not_where_the_header_says_are_refused(entry):
    metadata = '"__metadata__":{"dualstream_format":"1","sha256":""}'
    good = '{"dtype":"F64","shape":[1],"data_offsets":[0,8]}'
    header = '{%s,"x":%s}'
    whole = signed((header % (metadata, good)).encode(), bytes(8))
    assert load(whole)[0]["x"].tolist() == [0.0]
    with pytest.raises(CorruptState, match="not where the header says"):
        load(signed((header % (metadata, entry)).encode(), bytes(8)))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"__metadata__":{"dualstream_format":"1","sha256":7}}',
        b'{"__metadata__":{"dualstream_format":"1","sha256":"\\ud800"}}',
        b'{"__metadata__":[]}',
        b"[]",
    ],
)
def test_a_header_that_is_none_is_refused(header):
    with pytest.raises(CorruptState, match="not a state"):
        load(len(header).to_bytes(8, "little") + header)


def test_arrays_of_other_types_are_not_written():
    with pytest.raises(ValueError, match="x is an array of complex128"):
        dump({"x": np.array([1j])}, {})


def test_metadata_may_not_use_the_names_of_the_format():
    with pytest.raises(ValueError, match="sha256"):
        dump({}, {"sha256": "0"})


def test_learner_is_restored_from_bytes(adult):
    spec = {"loss": "hinge", "features": {"kind": "indexed", "dim": 123}}
    learner, other = make_learner(spec), make_learner(spec)
    learner.learn(adult[:200])
    other.restore(load(dump(learner.state(), {}))[0])
    learner.learn(adult[200:])
    other.learn(adult[200:])
    assert dump(learner.state(), {}) == dump(other.state(), {})

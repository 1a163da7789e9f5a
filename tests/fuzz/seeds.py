"""Seed inputs for fuzzing: mostly valid bodies, and their tokens."""

import gzip
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import zstandard

from dualstream.service.journal.record import (
    KeyKind,
    encode_control,
    encode_opening,
    encode_rows,
    make_key,
)
from tests.fuzz.store_targets import snapshots
from tests.service.codecs.line_strategies import SCHEMAS
from tests.service.codecs.support import stream_of

# For every model, with and without labels.
_FIRST = [bytes((of,)) for of in (*range(len(SCHEMAS)), *range(128 + 1, 128 + 1 + len(SCHEMAS)))]
_SAMPLES = [
    '{"x":{"1":1,"3":0.5},"y":1}\n{"x":[0,1.5e-3,0,0,-2],"y":0,"weight":2}\n',
    '{"x":{"a":1,"city":"Oslo","on":true},"y":"ham","weight":0.25}\r\n{"y":1,"x":{}}',
    ' {"x" : {"1" : 12345678901234567890.5, "1":1e22} , "y" : "späm"}\n\n{"x":{"a\\u0041":null}}\n',
    '{"x":{"5":1e100},"y":3e2,"id":"e:1"}\n{"x":{"5":1e101},"y":NaN}\n[1]\n{"x":',
]
_JSON = [
    '{"samples":[{"x":{"1":1},"y":1,"weight":1},{"x":{"2":null},"y":0},{"x":[1,2,3,4,5],"y":1}]}',
    '{"x":[[1,0,0,0,2],{"3":1}],"y":[1,0],"weight":[1,2],"ids":["a:b",null]}',
    '{"x":{"1":1,"1":2,"a":true},"y":true,"id":7}',
    '{"samples":[{"x":{"a":"b","a":"c"},"y":"1"},{"y":1}],"z":[]}',
]
_CSV = [
    'y,1,2\n1,0.5,\n0,-1e-3,"2"\n',
    'a,"b ""c""",label,weight\r\nx,"y\nz",ham,2\r\n1e5,true,späm,\r\n\r\n,,ham,0.5',
    "city,id,y\nOslo,7,1\n 1,e1,+1\n-,,0\n1,2,3,4\n",
    "1,5,weight\n1,2,3\n01,.5,x\n",
]
_VW = [
    "1 2.5 'tag|ns:0.5 a:1 b city=Oslo |1 2:3e-2\n-1 | 1:1 5:2\r\n",
    "ham |é a^b:0.1 c\n\nspäm 0.5|\tx y:.5\n1:2 | a\n",
    "3e2 |:2 a\n1 1 1 | a\n1|a|b:-1e-3 c:1e400",
]
_LIBSVM = [
    "+1 1:1 3:0.5\n-1 2:1e-3 5:12345678901234567890\r\n",
    "ham 1:.5 2:5. # end\n\n# all\nspäm 3:-0\n 0:1 2:2",
    "1 1:1 1:2\n2.5e1 9:1\nnan 1:1\n1 2:inf 3:0x1\n1 1000000000:1\n1 2:1 1:3",
]
_LABELS = [
    '{"id":"a","y":1}',
    '{"labels":[{"id":"a","y":1},{"id":7,"y":"0"},{"id":null,"y":2},{"y":true}]}',
    '{"id":1e3,"y":0.5}',
    "[1]",
]
_MESSAGES = [
    b'json\0{"x":{"1":1},"y":1}',
    b"y\x001\0x\x003:1,5:0.5\0weight\x002\0id\0e1",
    b"y\0ham\0x.a\x0039\0x.city\0Oslo\0x.on\0true",
    b"y\x001.0\0x\x001:nan,2:1_0",
]


def _of_each(texts: Sequence[str | bytes]) -> list[bytes]:
    bodies = [text.encode() if isinstance(text, str) else text for text in texts]
    return [first + body for first in _FIRST for body in bodies]


def _arrow() -> list[bytes]:
    words = pa.array(["x", "é", None]).dictionary_encode()
    tables = [
        pa.table({"1": [1.0, 0.0, float("nan")], "5": [1, None, 3], "y": [1, 0, 1]}),
        pa.table({"a": words, "b": ["é", "", "f"], "on": [True, False, None], "y": [1.0, 0.0, 1]}),
        pa.table({"3": np.arange(3, dtype=np.float32), "label": ["ham", "späm", "1"]}),
        pa.table({"2": [1, 2], "weight": [1.0, -1.0], "id": ["a", None], "y": [True, False]}),
    ]
    return [stream_of(table) for table in tables] + [stream_of(tables[0], tables[0])]


def _inflation() -> list[bytes]:
    some = [b"", b"x", bytes(5000), json.dumps({"samples": list(range(99))}).encode()]
    packed = [(b"\xff", gzip.compress(one, mtime=0)) for one in some]
    packed += [(b"\0", zstandard.compress(one)) for one in some]
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(4 << 20))
    packed += [(b"\0", bomb), (b"\xff", gzip.compress(bytes(2 << 20), mtime=0))]
    return [first + body * times for first, body in packed for times in (1, 2)]


def _cutting() -> list[bytes]:
    texts = [_LIBSVM, _SAMPLES, _VW, _CSV]
    results = [bytes((n,)) + (text * 3).encode() for n, of in enumerate(texts) for text in of]
    results.append(b"\x03" + b'a,y\n"b\nb",1\n' * 9)
    return results + [b"\x04" + stream for stream in _arrow()]


def _records() -> list[bytes]:
    """Every column of rows, every field of a control, alone and joined."""
    key, mark = make_key(KeyKind.SAMPLE, "id"), bytes(range(16))
    rows = ([0, 2, 3], [1, 300, 7], [0.5, 2.0, -1.0])
    parts = [
        encode_rows(*rows, [1.0, -1.0]),
        encode_rows(*rows, [0.1, 3.0], weights=[2.0, 0.1]),
        encode_rows(*rows, ["b", "é"], ids=["", "x"], names=[(3, "n")]),
        encode_rows([0, 1], [70000], [1.0], [2.5], key=key, fingerprint=mark, continues=True),
        encode_rows(range(7), [0] * 6, served_scores=[0.25] * 6, served_seqs=[7] * 6),
        encode_rows([0, 3], [0, 1, 2], [0.1, 0.2, 0.3]),
        encode_rows([0, 0], [], []),
        encode_rows(range(301), [5] * 300, None, [1.0] * 300),
        encode_opening(make_key(KeyKind.REQUEST, "k"), mark),
        encode_control("refit", {"a": 1, "b": [None, "c"]}, {"w": np.eye(2), "v": np.array(0.5)}),
        encode_control("pause", {}, key=make_key(KeyKind.REFIT, "7")),
    ]
    return [b"\xff" + part for part in parts] + [
        b"\xff" + b"".join(parts[:4]),
        b"\xff" + parts[0] * 9,
    ]


SEEDS = {
    "libsvm": lambda: _of_each(_LIBSVM),
    "ndjson": lambda: _of_each(_SAMPLES),
    "csv": lambda: _of_each(_CSV),
    "vw": lambda: _of_each(_VW),
    "json": lambda: _of_each(_JSON + _SAMPLES[:1]),
    "arrow": lambda: _of_each(_arrow()),
    "inflation": _inflation,
    "cutting": _cutting,
    "messages": lambda: _of_each(_MESSAGES),
    "late_labels": lambda: _of_each(_LABELS),
    "record": _records,
    "snapshot": snapshots,
}

WORDS = [
    '{"x":', '"y":', '"weight":', '"id":', '"samples":[', '"labels":[', '"ids":[', "null", "true",
    "false", "NaN", "Infinity", "1e100", "2e100", "1e-400", "1e309", "-0.0", "12345678901234567890",
    "1000000000", "2147483647", "4294967296", '"1":', '"a":"b"', "\\u00e9", "\\ud800", "é", "\r\n",
    "label", "weight", "'t", "|n:2 ", "3:1", "#", "nan", "inf", "__metadata__", "data_offsets",
]  # fmt: skip
"""For the fuzzer to put in."""

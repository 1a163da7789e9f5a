"""Hypothesis strategies of lines of rows, good and bad."""

import json

from hypothesis import strategies as st

from dualstream.service.codecs import RowSchema
from dualstream.service.codecs.record_reader import parse_quickly, parse_slowly
from dualstream.service.codecs.row_schema import LONGEST_NAME
from dualstream.solvers import resolve_spec
from tests.service.codecs.support import HASHED, INDEXED, bits

SPECS = [
    INDEXED,
    HASHED,
    HASHED | {"labels": ["ham", "späm"]},
    HASHED | {"task": "regression", "loss": "squared"},
    INDEXED | {"task": "multiclass", "loss": "hinge"},
    {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 2}},
]
SCHEMAS = [RowSchema(resolve_spec(spec)) for spec in SPECS]
numbers = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.sampled_from("0 -0 -0.0 1 -1 1e5 1E-7 1e100 2e100 1e309 0.1e-400 NaN 01 1. .5 + 1e".split()),
    st.sampled_from("+5 -.5 -inf 9007199254740993 -007 True FALSE tRUE nan -0x1".split()),
)
words = st.sampled_from(["true", "false", "null", "tru", "Infinity", "{}", "[]", ""])
names = st.sampled_from(
    [
        "",
        "a",
        "b",
        "city",
        "1",
        "2",
        "5",
        "6",
        "05",
        "é",
        "e\u0301",
        "x",
        "y",
        "a=b",
        "a:b",
        "n" * 40,
    ]
    + ["n" * n for n in (LONGEST_NAME - 1, LONGEST_NAME, LONGEST_NAME + 1)]
)
quoted = st.one_of(
    names.map(lambda s: json.dumps(s, ensure_ascii=False)), st.text(max_size=4).map(json.dumps)
)
values = st.one_of(numbers, numbers, quoted, words)
flags = st.booleans()
spaces = st.sampled_from(["", "", "", " ", "\t ", "\r"])


@st.composite
def objects(draw, keys, what, most):
    """The JSON of an object, or nearly so."""
    pairs = draw(st.lists(st.tuples(keys, what), max_size=most))
    space = draw(spaces)
    return "{" + f",{space}".join(f"{space}{k}{space}:{space}{v}{space}" for k, v in pairs) + "}"


def labels_of(schema: RowSchema) -> list[str]:
    """Texts that the model takes as labels."""
    if schema.class_names:
        return list(schema.class_names)
    return ["1", "-2.5", "3e2", "0"] if schema.task == "regression" else ["1", "0", "-1"]


good_numbers = st.floats(-1e6, 1e6).map(repr) | st.integers(-9, 9).map(str) | st.just("0.1")
good_names = st.sampled_from(["1", "2", "3", "4", "5"])
hashed_names = st.sampled_from(["a", "city", "é", "a=b", "", "n" * 30]) | good_names


@st.composite
def good_samples(draw, schema):
    """A sample that most models take."""
    keys = hashed_names if schema.is_hashed else good_names
    what = good_numbers | st.sampled_from(["true", "false"])
    what = what | quoted if schema.is_hashed else what
    pairs = draw(st.lists(st.tuples(keys, what), max_size=5, unique_by=lambda pair: pair[0]))
    space = draw(spaces)
    x = f",{space}".join(f"{space}{json.dumps(k)}{space}:{space}{v}" for k, v in pairs)
    y = draw(st.sampled_from(labels_of(schema)))
    y = json.dumps(y, ensure_ascii=False) if schema.class_names else y
    weight = draw(st.sampled_from(["", "", f',"weight":{space}2', ',"weight": 0.25']))
    return f'{space}{{{space}"x":{space}{{{x}}},{space}"y"{space}:{y}{weight}{space}}}{space}'


@st.composite
def strange_samples(draw):
    """A sample of some form that few models take."""
    x = draw(
        st.one_of(
            objects(quoted, values, 6),
            st.lists(numbers, min_size=5, max_size=5).map(lambda v: f"[{', '.join(v)}]"),
            st.lists(st.integers(-3, 3), min_size=4, max_size=6).map(json.dumps),
            values,
        )
    )
    y = draw(st.sampled_from(["1", "0", '"ham"', "true", "1.0", '"1"']) | values)
    fields = [("x", x), ("y", y)]
    if draw(flags):
        more = st.sampled_from(["weight", "weight", "x", "y", "id", "z", "wei"])
        fields.append(draw(st.tuples(more, numbers)))
    fields = draw(st.permutations(fields))
    space = draw(spaces)
    inner = f"{space},{space}".join(f'{space}"{k}"{space}:{space}{v}' for k, v in fields)
    return f"{space}{{{inner}}}{space}"


def outcome(parsed) -> tuple:
    errors = [(e.index, e.line, e.pointer, e.reason) for e in parsed.errors]
    return bits(parsed), list(parsed.row_indices), errors


def assert_same(make, schema: RowSchema, body: bytes, labelled: bool = True) -> None:
    quick = parse_quickly(make(schema, body, labelled))
    slow = parse_slowly(make(schema, body, labelled))
    if quick is None:
        assert slow.rows.ids
    else:
        assert outcome(quick) == outcome(slow)


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


many_schemas = st.sampled_from(SCHEMAS)

"""Kernels of flat rows against ColumnReader: the same bits, names, labels, errors and indices."""

import csv
import io
import json
import random
import time
from datetime import UTC, datetime, timedelta
from itertools import product

import numpy as np
import pytest

from dualstream.service.codecs import ListedRows, as_batch, class_texts, parse_body
from dualstream.service.codecs.flat_rows import FlatLines, FlatList, FlatRecords, parse_flat_json
from dualstream.service.codecs.json_bulk import find_list
from dualstream.service.codecs.record_reader import parse_quickly, parse_slowly
from dualstream.service.codecs.row_schema import RowLimits, RowSchema
from dualstream.solvers import InvalidSpec, resolve_spec
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.rows.columns.inputs import key_number
from dualstream.solvers.rows.columns.plan import NoPlan
from dualstream.solvers.rows.text.tokens import ZERO
from dualstream.wire.text_values import nfc
from tests.fuzzing import SCALE

BODIES = 3 if DISABLED else int(40 * SCALE)
TEXTS = [
    "news",
    "Shop",
    "café",
    "cafe\u0301",
    "срочно",
    "東京",
    "नमस्ते",
    "a,b\\c",
    " padded ",
    "tab\t",
]
TEXTS += [
    "",
    "NA",
    "?",
    "true",
    "False",
    "TRUE",
    "yes",
    "No",
    "nan",
    "-Infinity",
    "02134",
    "2134.0",
]
TEXTS += [
    "+5",
    ".5",
    "5.",
    "1e5",
    "-0.0",
    "1_000",
    "1e400",
    "9007199254740993",
    "0x1F",
    "2,5",
    "missing",
]
TEXTS += [
    "\u0338x",
    "Ünïçödé Σίσυφος ΟΔΟΣ",
    "İstanbul",
    "H\u0331a",
    "e\u0301\u0327",
    "😀 smile 😀",
    'say "hi"',
    "two\nlines",
]
TEXTS += [
    "x" * 23,
    "x" * 24,
    "y" * 120,
    "é" * 120,
    "w " * 60,
    "z" * 1024,
    "z" * 1025,
    "long " * 500,
]
NUMERALS = [
    "0",
    "-0",
    "-0.0",
    "1",
    "2.0",
    "3.5",
    "0.1",
    "1e3",
    "1E-3",
    "12345678901234567890",
    "1e100",
    "1.1e100",
]
NUMERALS += [
    "1e22",
    "9007199254740992",
    "0.30000000000000004",
    "123456789012345678",
    "-7",
    "1e-400",
    "99",
    "20240229",
]
NUMERALS += [
    "1714981800",
    "1714981800123",
    "1714981800.5",
    "1714981800.1234565",
    "1714981800123456",
    "1714981800123456789",
    "1e14",
    "1e17",
    "99999999999999.5",
    "1e20",
    "1e11",
    "20230230",
    "1e-5",
    "0.00012",
]
TIMES = [
    "2024-05-06T09:30Z",
    "2024-05-06",
    "2024-05-06 09:30:15",
    "2024-02-29T23:59:59.999999+05:45",
    "2024-05-06 09:30:15.25 UTC",
    "2024-05-06 09:30 UTC",
    "2024-05-06 UTC",
    "2024-05-06 09:30 UTX",
    "20240506",
]
TIMES += [
    "2024-05-06T09:30:00.5-0300",
    "0001-01-01",
    "9999-12-31T23:00-05:00",
    "2024-05-06T24:00",
    "2023-02-29",
    "now",
]
TIMES += [
    "2024-05-06t09:30",
    "2024-W19-1",
    "1969-12-31T23:59:59+00",
    "2100-03-01T00:00:00Z",
    "1714981800",
    "1600-12-31",
    "1970-01-01",
    "1969-12-31T23:59:59.9",
]
NAMES = [
    "price",
    "zip",
    "member",
    "subject",
    "at",
    "site",
    "note",
    "user",
    "n\u00e9",
    "ip",
    "trace",
    "q.sin",
    "x",
    "free",
]
IDS = [
    '""',
    '"NA"',
    '"?"',
    '"é"',
    '"a\\u0062"',
    '"\\n"',
    '"a b"',
    '"0"',
    '"007"',
    '"1e5"',
    '"2134.0"',
    '"TRUE"',
]
IDS += ['"-7"', '"99"', '"99.0"', "99", "-7", "0", "-0", "12", "5.0", "5.5", "1e5", "1e300"]
IDS += ["18446744073709551616", "9" * 255, "9" * 256, "-" + "9" * 255]
IDS += ["null", "true", '["a"]', '{"a": 1}', "007", f'"{"x" * 255}"', f'"{"x" * 256}"']
COMPUTED = ["zip.count.1", "price.mean.1"]
TYPES = {
    "price": ["number", {"kind": "number", "missing": ["Shop", -7, "0.1"]}],
    "zip": ["category", {"kind": "category", "missing": ["news", "02134", "?"]}],
    "member": ["boolean", {"kind": "boolean", "missing": [1, "No", 7]}],
    "subject": [
        {"kind": "text", "ngrams": n, "weights": w}
        for n in (1, 2, 3)
        for w in ("count", "presence")
    ],
    "at": [
        "time",
        {"kind": "time", "parts": ["weekday", "month_day", "year_day", "age"]},
        {"kind": "time", "missing": ["now", 99, "2024-05-06"]},
    ],
    "note": ["ignore", "text"],
    "user.age": ["number", "category", "time", {"kind": "category", "missing": ["40", 39]}],
}  # fmt: skip


def schema_of(rng, **options):
    """A model whose columns have all types; narrow ones, in which features meet."""
    types = {name: rng.choice(kinds) for name, kinds in TYPES.items() if rng.random() < 0.8}
    fields = {
        "label": "clicked",
        "id": rng.choice([None, "event", "meta.id"]),
        "weight": "cost",
        "ignore": ["ip", "tr*"],
        "types": types,
    }
    fields["missing"] = rng.choice(
        [["", "NA", None], [], ["?", 99, -7, None], ["7", "-7", "0.0"], ["", "NaN", None]]
    )
    fields["missing_indicator"] = rng.random() < 0.3
    fields["unknown"] = rng.choice(["infer", "infer", "infer", "ignore", "refuse"])
    fields |= options
    spec = {"columns": fields, "features": {"kind": "hashed", "bits": rng.choice([4, 8, 18, 22])}}
    spec["task"] = rng.choice(["binary", "regression", "multiclass"])
    if fields["unknown"] == "infer":
        parts = types.get("at", {"parts": []})
        parts = parts if isinstance(parts, dict) else {}
        parts = parts.get("parts", ["hour", "weekday"])
        kinds = {name: k if isinstance(k, str) else k["kind"] for name, k in types.items()}
        able = [name for name, kind in kinds.items() if kind in ("number", "category", "boolean")]
        able += ["site", *(f"at.{part}" for part in parts if part != "age")]
        pairs = [rng.sample(able, min(len(able), rng.choice([2, 2, 3]))) for _ in range(3)]
        spec["crosses"] = pairs if len(able) > 1 and rng.random() < 0.6 else []
    spec["history"] = history_of(rng, types) if rng.random() < 0.5 else None
    try:
        resolved = resolve_spec(spec)
    except InvalidSpec:  # a declared feature has the hash of an age
        resolved = resolve_spec(spec | {"features": {"kind": "hashed", "bits": 22}})
    schema = RowSchema(resolved)
    return schema.observing if schema.inputs and rng.random() < 0.3 else schema


def history_of(rng, types):
    """Groups by columns of all types, also ignored ones; None if no column can be one."""
    kinds = {name: kind if isinstance(kind, str) else kind["kind"] for name, kind in types.items()}
    keys = [name for name, kind in kinds.items() if kind not in ("text", "time")]
    times, numbers = ([n for n, kind in kinds.items() if kind == one] for one in ("time", "number"))
    groups = []
    for half_life in range(1, rng.randrange(1, 4) + 1):
        group = {"by": rng.sample(keys, min(len(keys), rng.randrange(3)))}
        group["time"] = rng.choice([None, *times])
        group["of"] = rng.choice([None, *numbers])
        if any(group.values()):
            stats = ["count", "mean"] if group["of"] else ["count"]
            groups.append(group | {"stats": stats, "half_life": half_life})
    return groups or None


def value(rng, name, strange):
    """A value of a column as JSON, mostly one that fits."""
    kind = rng.random()
    if kind < strange:
        text = rng.choice([*TEXTS, *TIMES, *NUMERALS])
        more = [
            rng.choice(NUMERALS),
            "true",
            "false",
            "null",
            '["a", 1]',
            '{"a": 1}',
            '{"age": 3, "b": {}}',
            "01",
        ]
        return rng.choice([json.dumps(text), json.dumps(text, ensure_ascii=False), *more])
    if name == "price":
        return str(rng.choice([rng.randrange(100), round(rng.gauss(0, 10), 3), rng.random()]))
    if name == "member":
        return rng.choice(["true", "false", '"yes"', '"No"', "1", "0", "null"])
    if name in ("subject", "note"):
        words = [
            "free",
            "Money",
            "Деньги",
            "東京",
            "über",
            "it's",
            "a_b",
            "CAFÉ",
            "नमस्ते",
            "😀",
            "w" * 101,
        ]
        text = " ".join(rng.choices(words, k=rng.randrange(8)))
        # Kernels read no escapes of scripts with marks.
        return json.dumps(text, ensure_ascii=rng.random() < 0.5 and "\u0928" not in text)
    if name == "at":
        when = datetime(1980, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.random() * 1.4e9)
        forms = [
            when.isoformat(),
            when.strftime("%Y-%m-%dT%H:%M"),
            when.strftime("%Y-%m-%d %H:%M:%SZ"),
        ]
        return rng.choice(
            [*map(json.dumps, forms), str(int(when.timestamp())), repr(when.timestamp())]
        )
    if name == "user":
        age = rng.choice(["39", '"40"', "null", "1714981800"])
        return rng.choice([f'{{"age": {age}}}', f'{{ "age":{age}, "of": {{"a": "b"}} }}', "{}"])
    if name == "trace":
        return rng.choice(['{"a": {"b": "c"}, "d": 1}', '"t"'])
    return rng.choice(
        [
            json.dumps(rng.choice(["news", "shop", "zip5", "02134", "é"]), ensure_ascii=False),
            "7",
            "true",
        ]
    )


def id_of(rng, strange):
    """An id as JSON; some ids are there twice in a body."""
    plain = [f'"e{rng.randrange(200)}"', str(rng.randrange(200)), str(rng.getrandbits(63))]
    return rng.choice(IDS if rng.random() < strange else plain)


def row_of(rng, strange, id_=None):
    """One row as JSON: names in any order, gaps, spaces, and now and then a repeated name.

    `id_` is the column of ids.
    """
    names = [name for name in NAMES if rng.random() < 0.7]
    if rng.random() < 0.3:
        rng.shuffle(names)
    if rng.random() < strange:
        names.append(
            rng.choice(
                [*names, "user.age", "at.hour.sin", "subject:free", "a=b", "", "clicked", *COMPUTED]
            )
        )
    label = rng.choice(
        ["1", "0", "1", "0", "true", '"1"', "2.5" if rng.random() < strange else "1"]
    )
    fields = [("clicked", label)] if rng.random() > strange / 4 else []
    if rng.random() < 0.3:
        fields.append(
            (
                "cost",
                rng.choice(["2", "0.5", '"3"', "null", "-1" if rng.random() < strange else "1"]),
            )
        )
    fields += [(name, value(rng, name, strange)) for name in names]
    if id_ is not None and rng.random() < 0.8:
        inputs = id_of(rng, strange)
        fields.append((id_, inputs) if id_ == "event" else ("meta", f'{{ "id":{inputs}, "k": 2}}'))
    space = rng.choice(["", "", " ", "\t "])
    inner = f",{space}".join(
        f"{json.dumps(n, ensure_ascii=False)}{space}:{space}{v}" for n, v in fields
    )
    return f"{{{space}{inner}{space}}}{space}"


def spoiled(rng, text):
    at = rng.randrange(len(text) + 1)
    return (
        text[:at]
        + rng.choice(['"', ",", "}", "\\", "\x00", ":", "\\u00e9", "1", "\udcff"])
        + text[at + 1 :]
    )


def rows_of(rng, strange, count=60, id_=None):
    rows = [row_of(rng, strange if rng.random() < 0.5 else 0.0, id_) for _ in range(count)]
    return (
        rows
        if strange == 0
        else [spoiled(rng, one) if rng.random() < 0.03 else one for one in rows]
    )


def bits(parsed):
    """All of the rows that counts, floats as their bits; of names the first of each index."""
    batch = as_batch([parsed.rows])
    names: dict[int, str] = {}
    for index, name in parsed.names:
        names.setdefault(index, name)
    labels = class_texts(parsed.rows)
    return {
        "rows": batch.indptr.tolist(),
        "indices": batch.indices.tolist(),
        "values": batch.values.view(np.int64).tolist(),
        "labels": [str(one) for one in labels],
        "weights": batch.weights.view(np.int64).tolist(),
        "names": list(names.items()),
        "ids": parsed.rows.ids if isinstance(parsed.rows, ListedRows) else {},
        "at": list(parsed.row_indices),
        "errors": [(one.index, one.line, one.pointer, one.reason) for one in parsed.errors],
    }


def assert_same(quick, slow):
    assert_same_names_by_row(quick.rows, slow.rows)
    result, expected = bits(quick), bits(slow)
    if result != expected:
        for part, one in expected.items():
            pairs = enumerate(zip(result[part], one, strict=False))
            differing = [(at, *pair) for at, pair in pairs if pair[0] != pair[1]]
            assert result[part] == one, (part, differing[:4])


def assert_same_names_by_row(result, expected):
    """A row with an id has the names of its features."""
    if isinstance(result, ListedRows):
        for row in range(len(result)):
            assert result.names_of(row, row + 1) == expected.names_of(row, row + 1)


def encoded(text):
    return text.encode("utf-8", "surrogateescape")


def test_lines_are_read_as_by_the_column_reader(subtests):
    for seed, strange in product(range(BODIES), [0.0, 0.1, 0.5]):
        with subtests.test(seed=seed, strange=strange):
            rng = random.Random(f"{seed} {strange}")
            schema = schema_of(rng)
            body = encoded("\n".join(rows_of(rng, strange, id_=schema.columns.id)))
            body = encoded(nfc(body.decode())) if rng.random() < 0.5 and strange == 0 else body
            for labelled in {not schema.observes, False}:
                expected = parse_slowly(FlatLines(schema, body, labelled))
                assert_same(parse_quickly(FlatLines(schema, body, labelled)), expected)


def test_lists_are_read_as_by_the_column_reader(subtests):
    for seed in range(BODIES):
        with subtests.test(seed=seed):
            rng = random.Random(f"list {seed}")
            schema = schema_of(rng)
            text = f"[{', '.join(rows_of(rng, rng.choice([0.0, 0.02]), id_=schema.columns.id))}]"
            body = encoded(text if rng.random() < 0.5 else f'{{"samples": {text}}}')
            begin = find_list(body)
            assert begin is not None
            labelled = not schema.observes
            quick = FlatList(schema, body, labelled, *begin).parse()
            if quick is None:
                continue
            # A body that is short is read by ColumnReader.
            slow = parse_flat_json(schema, body, labelled, waiting=False, few_bytes=len(body) + 1)
            assert_same(quick, slow)
            assert quick.id_pointer == slow.id_pointer


def test_records_are_read_as_by_the_column_reader(subtests):
    for seed, delimiter in product(range(BODIES), [",", ";", "\t"]):
        with subtests.test(seed=seed, delimiter=delimiter):
            rng = random.Random(f"csv {seed}")
            schema = schema_of(rng)
            names = [
                "clicked",
                *rng.sample(
                    [
                        "price",
                        "zip",
                        "member",
                        "subject",
                        "at",
                        "site",
                        "note",
                        "user.age",
                        "ip",
                        "cost",
                    ],
                    7,
                ),
            ]
            out = io.StringIO()
            writer = csv.writer(
                out, delimiter=delimiter, quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
            )
            id_ = schema.columns.id
            writer.writerow([*names, *([id_] if id_ else [])])
            for _ in range(60):
                strange = rng.choice([0.0, 0.0, 0.3])
                fields = [rng.choice(["1", "0"])]
                for name in names[1:]:
                    inputs = value(rng, "other" if name == "user.age" else name, strange)
                    fields.append(json.loads(inputs) if inputs[0] == '"' else inputs)
                    if name == "cost":
                        fields[-1] = rng.choice(["1", "2.5", "", "-1" if strange else "0"])
                if id_:
                    inputs = id_of(rng, strange)
                    fields.append(json.loads(inputs) if inputs[0] == '"' else inputs)
                writer.writerow(fields)
            body = encoded(out.getvalue())
            for labelled in {not schema.observes, False}:
                readers = [FlatRecords(schema, body, labelled, delimiter) for _ in range(2)]
                assert readers[0].nodes is not None
                assert_same(parse_quickly(readers[0]), parse_slowly(readers[1]))


# Of seed 1, prices of 17 digits are crossed or keys.
@pytest.mark.parametrize("seed", [0, 2, 5])
def test_kernels_read_almost_all_valid_rows(seed):
    rng = random.Random(f"plain {seed}")
    schema = schema_of(rng, unknown="infer")
    rows = rows_of(rng, 0.0, 400, schema.columns.id)
    reader = FlatLines(schema, encoded("\n".join(rows)), True)
    left = []
    exact = reader.add_row

    def add_row(builder, index, start, end):
        exact(builder, index, start, end)
        left.append(index)

    reader.add_row = add_row
    parsed = parse_quickly(reader)
    # The first row of each spelling of a label is left, and the last row of the body.
    assert len(left) < 10 and len(parsed.row_indices) > 100


def test_rows_with_too_many_features_are_refused_also_with_ids():
    schema = RowSchema(resolve_spec({"columns": {"label": "clicked"}}), RowLimits(nonzeros=3))
    rows = [{"clicked": 1, "id": f"e{n}", **dict.fromkeys("abcd"[: n % 5], 1)} for n in range(200)]
    body = "\n".join(map(json.dumps, rows)).encode()
    quick = parse_quickly(FlatLines(schema, body, True))
    assert_same(quick, parse_slowly(FlatLines(schema, body, True)))
    assert len(quick.errors) == 40 and len(quick.rows.ids) == 160


PAST = {
    "columns": {"label": "clicked", "types": {"user.at": "time", "ip": "ignore", "n": "number"}},
    "history": [{"by": "ip", "time": "user.at", "of": "n", "stats": ["mean"], "half_life": "1d"}],
}


def past_rows(count):
    return [
        {"clicked": k % 2, "id": f"e{k}", "ip": f"10.0.0.{k % 9}", "n": k % 3} for k in range(count)
    ]


def test_times_far_in_the_future_are_refused():
    schema = RowSchema(resolve_spec(PAST))
    rows = past_rows(90)
    soon, late = time.time() + 86_300, time.time() + 86_500
    for k, row in enumerate(rows):
        row["user"] = {"at": late if k % 7 == 3 else soon}
    body = "\n".join(map(json.dumps, rows)).encode()
    for one in (schema, schema.observing):
        labelled = not one.observes
        quick = parse_quickly(FlatLines(one, body, labelled))
        assert_same(quick, parse_slowly(FlatLines(one, body, labelled)))
        assert [error.index for error in quick.errors] == list(range(3, 90, 7))
        assert {error.pointer for error in quick.errors} == {"/user/at"}
        assert "a day ahead of the server's clock" in quick.errors[0].reason


def test_inputs_do_not_count_as_features_of_a_long_row():
    schema = RowSchema(resolve_spec(PAST), RowLimits(nonzeros=3))
    rows = [row | dict.fromkeys("abcd"[: k % 4], 1) for k, row in enumerate(past_rows(200))]
    for row in rows:
        del row["id"]
    body = "\n".join(map(json.dumps, rows)).encode()
    parsed = parse_body(schema, "application/x-ndjson", body, labelled=True)
    # A number of 0 is no feature.
    refused = [k for k in range(200) if k % 4 == 3 and k % 3]
    assert [error.index for error in parsed.errors] == refused
    assert {error.reason for error in parsed.errors} == {
        "the row has 4 non-zero features; the limit is 3"
    }


def test_observed_rows_have_inputs_and_ages_alone():
    spec = json.loads(json.dumps(PAST)) | {"task": "multiclass"}
    spec["columns"]["types"]["user.at"] = {"kind": "time", "parts": ["hour", "age"]}
    schema = RowSchema(resolve_spec(spec))
    rows = [row | {"site": "news", "user": {"at": 1.7e9}} for row in past_rows(60)]
    body = "\n".join(map(json.dumps, rows)).encode()
    parsed = parse_body(schema.observing, "application/x-ndjson", body, labelled=False)
    assert parsed.rows.ids == {k: f"e{k}" for k in range(60)} and not parsed.names
    batch = as_batch([parsed.rows])
    (age,) = schema.ages
    dim = schema.dim
    assert batch.indices.tolist() == [age, dim, dim + 1, dim + 2] * 60
    assert np.isnan(batch.labels).all() and not batch.weights.any()
    values = batch.values.reshape(60, 4)
    assert values[:, 0].tolist() == values[:, 2].tolist() == [1.7e9] * 60
    assert values[:, 1].tolist() == [key_number(row["ip"]) for row in rows]
    assert values[:, 3].tolist() == [row["n"] or ZERO for row in rows]


def test_more_names_than_a_plan_holds_and_more_features_than_bytes_suggest():
    types = {"subject": {"kind": "text", "ngrams": 3}, **{f"t{n}": "category" for n in range(300)}}
    columns = {"label": "clicked", "id": None, "types": types, "missing_indicator": True}
    schema = RowSchema(resolve_spec({"columns": columns}))
    texts = [" ".join(chr(97 + (n * k) % 26) for k in range(200)) for n in range(3)]
    rows = [{"clicked": n % 2, "subject": texts[n % 3], f"n{n}": n} for n in range(1500)]
    body = "\n".join(map(json.dumps, rows)).encode()
    expected = parse_slowly(FlatLines(schema, body, True))
    assert_same(parse_quickly(FlatLines(schema, body, True)), expected)


def test_escapes_have_hexadecimal_digits_only(subtests):
    for index, wrong in product(range(4), "/:;<=>?@G`g"):
        with subtests.test(place=index, wrong=wrong):
            schema = RowSchema(resolve_spec({"columns": {"label": "clicked"}}))
            code = "".join(wrong if k == index else "00e9"[k] for k in range(4))
            lines = [
                b'{"clicked": 1, "site": "%s"}' % text for text in (b"news", b"\\u00e9", b"shop")
            ]
            lines.insert(1, lines[1].replace(b"00e9", code.encode()))
            body = b"\n".join(lines)
            quick = parse_quickly(FlatLines(schema, body, True))
            assert_same(quick, parse_slowly(FlatLines(schema, body, True)))
            assert [one.index for one in quick.errors] == [1]


@pytest.mark.parametrize("id_", [None, "event"])
def test_zero_names_no_index_in_any_parser(id_):
    """Python reads the first row, because the label is new, and kernels read the others."""
    features = {"kind": "hashed", "bits": 4}  # names share indices
    spec = {"columns": {"label": "clicked", "id": id_}, "features": features}
    schema = RowSchema(resolve_spec(spec))
    rows = [{"clicked": 1, "price": 0}, *({"clicked": 1, f"n{k}": 1} for k in range(60))]
    for row in rows[1::2]:
        row["event"] = "e1"
    body = "\n".join(map(json.dumps, rows)).encode()
    expected = parse_slowly(FlatLines(schema, body, True))
    assert_same(parse_quickly(FlatLines(schema, body, True)), expected)
    assert "price" not in [name for _, name in expected.names]


def test_columns_that_kernels_cannot_read_are_tried_once(monkeypatch):
    tried = []

    def no_plan(*columns):
        tried.append(columns)
        raise NoPlan

    monkeypatch.setattr("dualstream.service.codecs.row_schema.ColumnPlan", no_plan)
    schema = RowSchema(resolve_spec(PAST))
    assert [schema.observing.column_plan for _ in range(3)] == [None] * 3
    assert len(tried) == 1

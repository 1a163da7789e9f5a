"""Columns: what each type makes of a value, crosses, missing values, and what is refused."""

import math
import random
import re
from datetime import UTC, datetime, timedelta, timezone
from unicodedata import category

import pytest

from dualstream.solvers import BadColumn, ColumnReader, InvalidSpec, make_learner, resolve_spec
from dualstream.solvers.rows.columns.spec import Ignored
from tests.fuzzing import SCALE

AGED = {"kind": "time", "parts": ["hour", "age"]}


def reader(columns=None, crosses=None):
    inputs = {"columns": columns or {}} | ({} if crosses is None else {"crosses": crosses})
    spec = resolve_spec(inputs)
    return ColumnReader(spec["columns"], spec["crosses"])


def features(types, row, crosses=None, **more):
    return reader({"types": types} | more, crosses).read(row).features


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("number", 3.5, {"a": 3.5}),
        ("number", " 1e3 ", {"a": 1000.0}),
        ("boolean", True, {"a": True}),
        ("boolean", "No", {"a": False}),
        ("boolean", 1.0, {"a": True}),
        ("category", "02134", {"a": "02134"}),
        ("category", 2134, {"a": "2134"}),
        ("category", 2134.0, {"a": "2134"}),
        ("category", "2134.0", {"a": "2134"}),
        ("category", "1e5", {"a": "100000"}),
        ("category", "2.50", {"a": "2.50"}),
        ("category", ["x", "?", None], {"a=x": 1.0}),
        ("boolean", "1.0", {"a": True}),
        ("text", 2024, {"a:2024": 1.0}),
        ("category", 2.5, {"a": "2.5"}),
        ("category", False, {"a": "false"}),
        ("category", "FALSE", {"a": "false"}),
        ("category", ["x", "y", "x", 3], {"a=x": 1.0, "a=y": 1.0, "a=3": 1.0}),
        ("category", "cafe\u0301", {"a": "caf\u00e9"}),
        ("ignore", {"deep": [1]}, {}),
        ("ignore", [[{}]], {}),
        (None, "12", {"a": 12}),
        (None, "012", {"a": "012"}),
        (None, "True", {"a": True}),
        (None, ["12", "b"], {"a=12": 1.0, "a=b": 1.0}),
        (None, {"b": {"c": 1}, "d": "x"}, {"a.b.c": 1, "a.d": "x"}),
    ],
)
def test_a_value_becomes_the_features_of_its_type(kind, value, expected):
    types = {} if kind is None else {"a": kind}
    assert features(types, {"a": value}, missing=["?", None]) == expected


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("number", "abc", "must be a number, got 'abc'"),
        ("number", True, "must be a number, got True"),
        ("number", [1], "must be a number, got a list"),
        ("number", "inf", "inf is not a finite number"),
        ("boolean", 2, "must be a boolean"),
        ("boolean", "maybe", "must be a boolean"),
        ("category", [["x"]], "must be a category"),
        ("category", "x" * 1100, None),
        ("category", ["x" * 1100], "more than 1024 characters"),
        ("text", [5], "must be a text, got a list"),
        ("time", "yesterday", "must be a time"),
        ("time", "2024-13-01", "must be a time"),
        ("time", 1e20, "must be a time"),
        ("time", 2024, "must be a time"),
        ("time", "12345678", "must be a time"),
        ("number", {"b": 1}, "must be one value, got an object"),
        ("time", float("nan"), "must be a time"),
        ("time", True, "must be a time"),
        ("time", [], "must be a time"),
        (None, "Infinity", "not a finite number"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_column_value_and_type(kind, value, reason):
    read = reader({"types": {} if kind is None else {"a": kind}, "missing": [None]})
    if reason is None:
        assert read.read({"a": value}).features  # the row schema refuses it
        return
    with pytest.raises(BadColumn, match=reason) as refused:
        read.read({"b": 1, "a": value})
    assert refused.value.column == "a"


def test_an_integer_that_python_does_not_write_is_refused():
    with pytest.raises(BadColumn, match="too long"):
        features({"a": "category"}, {"a": 10**5000})
    with pytest.raises(BadColumn, match="must be a time, got 'a long integer'|must be a time"):
        features({"a": "time"}, {"a": 10**5000})


def brute_words(text, ngrams):
    """Words by their characters, and runs of them."""
    words, word = [], ""
    for sign in text.lower() + " ":
        if sign.isalnum() or sign == "_" or (word and category(sign) in ("Mn", "Mc")):
            word += sign
        elif word:
            words.append(word)
            word = ""
    runs = [
        tuple(words[i : i + n]) for n in range(1, ngrams + 1) for i in range(len(words) - n + 1)
    ]
    return [" ".join(run) for run in runs]


@pytest.mark.parametrize("ngrams", [1, 2, 3])
@pytest.mark.parametrize(
    "text",
    [
        "Free money, FREE money now!",
        "Бесплатные деньги — сейчас",
        "δωρεάν χρήματα ΤΏΡΑ",
        "東京 大阪 東京",
        "हिन्दी किताब हिन्दी",
        "İstanbul",
        "it's 50% off_today",
        "",
        "...",
    ],
)
def test_words_are_those_of_the_definition(text, ngrams):
    expected = brute_words(text, ngrams)
    counted = features({"a": {"kind": "text", "ngrams": ngrams}}, {"a": text}, missing=[None])
    assert counted == {f"a:{run}": float(expected.count(run)) for run in expected}
    kind = {"kind": "text", "ngrams": ngrams, "weights": "presence"}
    assert features({"a": kind}, {"a": text}, missing=[None]) == dict.fromkeys(counted, 1.0)


ZONE = timezone(timedelta(hours=5, minutes=30))
NOON = datetime(2024, 5, 6, 12, 30, tzinfo=UTC)  # a Monday


@pytest.mark.parametrize(
    "value",
    [
        "2024-05-06T12:30:00Z",
        "2024-05-06 12:30",
        "2024-05-06T18:00:00+05:30",
        NOON.astimezone(ZONE).isoformat(),
        int(NOON.timestamp()),
        NOON.timestamp() * 1000,
        str(int(NOON.timestamp())),
        f"{NOON.timestamp():.9e}",
    ],
)
def test_a_time_is_the_same_however_it_is_written(value):
    kind = {"kind": "time", "parts": ["year_day", "hour", "weekday", "month_day"]}
    got = features({"at": kind}, {"at": value})
    hour = 2 * math.pi * 12.5 / 24
    assert got["at.weekday"] == "mon"
    assert got["at.hour.sin"] == pytest.approx(math.sin(hour))
    assert got["at.hour.cos"] == pytest.approx(math.cos(hour))
    assert math.atan2(got["at.month_day.sin"], got["at.month_day.cos"]) == pytest.approx(
        2 * math.pi * (5 + 12.5 / 24) / 31
    )
    day = (NOON - datetime(2024, 1, 1, tzinfo=UTC)) / timedelta(days=1)
    turn = math.atan2(got["at.year_day.sin"], got["at.year_day.cos"]) % (2 * math.pi)
    assert turn == pytest.approx(2 * math.pi * day / 366)
    assert len(got) == 7


def test_a_type_has_missing_values_of_its_own():
    types = {
        "a": {"kind": "number", "missing": ["none", -1]},
        "b": {"kind": "category", "missing": ["NA"]},
        "c": "category",
    }
    row = {"a": "none", "b": "none", "c": "none"}
    assert features(types, row, missing=["", None]) == {"b": "none", "c": "none"}
    row = {"a": "-1.0", "b": "NA", "c": "NA"}
    assert features(types, row, missing=["", None]) == {"c": "NA"}
    assert features(types, {"a": 2, "b": "", "c": -1}, missing=["", None]) == {"a": 2, "c": "-1"}
    lists = {"b": ["NA", "x"], "c": ["NA", "x"]}
    assert features(types, lists) == {"b=x": 1.0, "c=NA": 1.0, "c=x": 1.0}


def test_missing_values_are_absent_or_features():
    row = {"a": "?", "b": None, "c": "", "d": float("nan"), "e": -1, "f": "x"}
    types = {"a": "number", "e": "number", "g": "category"}
    missing = ["?", "", None, "NaN", -1]
    assert features(types, row, missing=missing) == {"f": "x"}
    shown = features(types, row, missing=missing, missing_indicator=True)
    assert shown == {"f": "x"} | {f"{name}=missing": 1.0 for name in "abcdeg"}
    exact = [9_999_999, -1, "00"]
    for value in (9_999_999, "9999999", -1.0, "-1.0", " -1", "00"):
        assert features({}, {"a": value}, missing=exact) == {}, value
    for value in (10_000_000, 0, "0", 1):
        assert features({}, {"a": value}, missing=exact) == {"a": float(value)}, value
    with pytest.raises(BadColumn, match="must be a number, got '\\?'"):
        features(types, row, missing=[None])
    with pytest.raises(BadColumn, match="got null"):
        features({"a": "number"}, {"a": None}, missing=[])


def test_crosses_need_all_their_columns():
    crosses = [["site", "hour"], ["site", "at.weekday", "member"], ["tags", "site"]]
    types = {"at": "time", "member": "boolean"}
    row = {"site": "a,b", "hour": 9, "at": "2024-05-06", "member": "yes", "tags": ["x", "y"]}
    got = features(types, row, crosses)
    assert {name for name in got if "*" in name} == {
        "site*hour=a\\,b,9",
        "site*at.weekday*member=a\\,b,mon,true",
        "tags*site=x,a\\,b",
        "tags*site=y,a\\,b",
    }
    del row["site"]
    assert not any("*" in name for name in features(types, row, crosses))


def test_the_crosses_of_lists_are_bounded():
    row = {name: [f"{name}{n}" for n in range(80)] for name in "abc"}
    with pytest.raises(BadColumn, match="crosses of the row have more than 1,000 features"):
        features({}, row, [["a", "b", "c"]])
    with pytest.raises(BadColumn, match="more than 10,000 columns"):
        features({}, {f"c{n}": n for n in range(20_000)})


def test_star_matches_any_characters():
    row = {"user_id": 1, "_id": 2, "id": 3, "t.a.z": 4, "t.z": 5, "t.a": 6, "a\nb_id": 7, "x+": 8}
    assert features({}, row, ignore=["*_id", "t.*.z", "x+*"], id=None) == {
        "id": 3, "t.z": 5, "t.a": 6,
    }  # fmt: skip


def test_an_ignored_name_is_ignored_however_it_is_nested():
    more = {"ignore": ["trace", "x_*", "deep.er"]}
    for row in (
        {"a": 1, "trace": {"b": {"c": 2}}, "x_1": 1, "deep": {"er": {"est": 1}}},
        {"a": 1, "trace.b.c": 2, "x_1.y": 1, "deep.er.est": 1},
        {"a": 1, "trace": 3, "skip": {"z": 1}, "skip.z": 2},
    ):
        assert features({"skip": "ignore"}, row, **more) == {"a": 1}


def test_ignored_names_are_those_of_the_definition():
    """A pattern matches the name, or what is before one of its dots."""
    rng = random.Random(0)
    for _ in range(int(20_000 * SCALE)):
        patterns = ["".join(rng.choices("ab.*", k=rng.randint(1, 5))) for _ in range(2)]
        name = "".join(rng.choices("ab.\n", k=rng.randint(1, 7)))
        owners = [name[:at] for at, sign in enumerate(name) if sign == "." and at]
        expressions = [".*".join(map(re.escape, one.split("*"))) for one in patterns]
        expected = any(
            re.fullmatch(one, owner, re.DOTALL) for one in expressions for owner in [name, *owners]
        )
        assert (name in Ignored(patterns, {})) == expected, (patterns, name)


@pytest.mark.parametrize("name", ["." * 10**6, "a." * 10**6, "_" * 10**6])
def test_a_long_name_of_dots_is_not_searched_for_patterns_again_and_again(name):
    """A search for each dot, or for each place of a star, takes hours here."""
    assert name not in Ignored(["*_*_id", "*.*.b", "trace", "x" * 1000], {"skip": "ignore"})
    assert f"trace.{name}" in Ignored(["trace"], {})


def test_a_star_is_all_pairs_of_categories():
    types = {"b": "category", "a": "category", "c": "boolean", "n": "number"}
    row = {"a": "x", "b": "y", "c": 1, "n": 3, "other": "z"}
    got = features(types, row, ["*", ["b", "a"]])
    assert {name for name in got if "*" in name} == {"a*b=x,y", "a*c=x,true", "b*c=y,true"}


def test_roles_ids_and_explicit_rows():
    read = reader({"label": "clicked", "id": "event", "weight": "cost", "ignore": ["ip", "t.*"]})
    flat = {"clicked": 1, "event": 7.0, "cost": "2", "ip": "1.1.1.1", "t": {"a": 1}, "n": 1}
    for row in (flat, {"x": {"n": 1, "ip": "::1"}, "y": 1, "id": 7, "weight": 2}):
        got = read.read(row)
        assert (got.features, got.label, got.id, got.weight) == ({"n": 1}, 1, 7, 2)
    fields = {"x": {"n": 1}, "clicked": 1, "event": "7.0", "cost": 2}
    got = read.read(fields)
    assert (got.features, got.label, got.id, got.weight) == ({"n": 1}, 1, "7", 2)
    with pytest.raises(BadColumn, match="the object `x` and the column 'z'"):
        read.read({"x": {"n": 1}, "z": 2})
    nested = reader({"types": {"x.n": "number"}})
    assert nested.read({"x": {"n": 1}, "z": 2}).features == {"x.n": 1, "z": 2}
    assert read.read({"clicked": [1], "n": 1}).label == [1]
    plain = reader().read({"y": 1, "id": "a", "weight": 0.5, "n": 1})
    assert (plain.features, plain.label, plain.id, plain.weight) == ({"n": 1}, 1, "a", 0.5)
    assert reader({"types": {"weight": "number"}}).read({"weight": 80}).features == {"weight": 80}
    for row, reason in (
        ({"event": 1.5}, "id must be"),
        ({"cost": "much"}, "must be a number"),
        ({"clicked": {"a": 1}}, "must be one value, got an object"),
        ({"a": {"b": 1}, "a.b": 2}, "there twice"),
        ({"": 1}, "has no name"),
        ({"n" * 2000: 1}, "more than 1024"),
    ):
        with pytest.raises(BadColumn, match=reason):
            read.read(row)
    deep = {"n": 1}
    for _ in range(20):
        deep = {"d": deep}
    with pytest.raises(BadColumn, match="nested"):
        read.read(deep)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2024-05-06T09:30:00+02:00", 1714980600.0),
        (1714980600123, 1714980600.123),
        ("1969-12-31T23:59:59.5", -0.5),
        ("0001-01-01", -62135596800.0),
        ("1970-01-01", 1e-6),
    ],
)
def test_a_time_with_an_age_brings_its_seconds(value, seconds):
    got = features({"at": AGED}, {"at": value})
    assert list(got) == ["at.hour.sin", "at.hour.cos", "at.age"]
    assert got["at.age"] == seconds


def test_unknown_columns_are_inferred_left_out_or_refused():
    types = {"a": "number"}
    row = {"a": 1, "b": "x"}
    assert features(types, row) == {"a": 1, "b": "x"}
    assert features(types, row, unknown="ignore") == {"a": 1}
    with pytest.raises(BadColumn, match="there is no column 'b'; the columns are a"):
        features(types, row, unknown="refuse")


def test_columns_are_part_of_the_specification_and_not_of_the_learner():
    spec = resolve_spec({"columns": {"types": {"a": "text", "t": "time"}}})
    assert resolve_spec(spec) == spec
    assert spec["columns"]["types"] == {
        "a": {"kind": "text", "ngrams": 1, "weights": "count"},
        "t": {"kind": "time", "parts": ["hour", "weekday"]},
    }
    assert (spec["columns"]["label"], spec["columns"]["id"]) == ("y", "id")
    plain = resolve_spec({})
    assert "columns" not in plain and {n: spec[n] for n in plain} == plain
    assert make_learner(spec).samples == 0


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"columns": []}, "/columns"),
        ({"columns": {"labels": "a"}}, "/columns/labels"),
        ({"columns": {"label": ""}}, "/columns/label"),
        ({"columns": {"label": "a", "id": "a"}}, "/columns/id"),
        ({"columns": {"label": "a", "types": {"a": "number"}}}, "/columns/types/a"),
        ({"columns": {"label": "a", "ignore": ["a"]}}, "/columns/label"),
        ({"columns": {"ignore": ["t.*"], "types": {"t.x": "number"}}}, "/columns/types/t.x"),
        ({"columns": {"types": {"a/b": "numbr"}}}, "/columns/types/a~1b"),
        ({"columns": {"types": {"a": {"kind": "text", "ngrams": 4}}}}, "/columns/types/a/ngrams"),
        ({"columns": {"types": {"a": {"kind": "time", "parts": []}}}}, "/columns/types/a/parts"),
        (
            {"columns": {"types": {"a": {"kind": "time", "parts": ["minute"]}}}},
            "/columns/types/a/parts",
        ),
        ({"columns": {"types": {f"c{n}": "number" for n in range(10_001)}}}, "/columns/types"),
        ({"columns": {"missing": [True]}}, "/columns/missing/0"),
        (
            {"columns": {"types": {"a": {"kind": "number", "missing": [1, True]}}}},
            "/columns/types/a/missing/1",
        ),
        (
            {"columns": {"types": {"a": {"kind": "ignore", "missing": []}}}},
            "/columns/types/a/missing",
        ),
        ({"columns": {"missing": [10**400]}}, "/columns/missing/0"),
        (
            {"columns": {"types": {"a": {"kind": "time", "parts": [["a"]]}}}},
            "/columns/types/a/parts",
        ),
        ({"columns": {"types": {"a": "time", "a.hour": "category"}}}, "/columns/types/a.hour"),
        ({"columns": {"label": "m.y", "ignore": ["m"]}}, "/columns/label"),
        ({"columns": {"types": {"m": "ignore", "m.a": "number"}}}, "/columns/types/m.a"),
        ({"columns": {"types": {"a": "time"}}, "crosses": [["s", "a.month_day"]]}, "/crosses/0/1"),
        ({"columns": {"types": {"a": "time"}}, "crosses": [["s", "a.minute"]]}, "/crosses/0/1"),
        ({"columns": {"types": {"a": AGED}}, "crosses": [["s", "a.age"]]}, "/crosses/0/1"),
        ({"columns": {"types": {"a": AGED, "a.age": "number"}}}, "/columns/types/a.age"),
        ({"columns": {}, "crosses": ["*"]}, "/crosses/0"),
        (
            {"columns": {"types": {f"c{n}": "category" for n in range(50)}}, "crosses": ["*"]},
            "/crosses/0",
        ),
        ({"columns": {"missing_indicator": 1}}, "/columns/missing_indicator"),
        ({"columns": {"unknown": "guess"}}, "/columns/unknown"),
        ({"columns": {}, "features": {"kind": "indexed", "dim": 3}}, "/columns"),
        ({"crosses": [["a", "b"]]}, "/crosses"),
        ({"columns": {}, "crosses": [["a"]]}, "/crosses/0"),
        ({"columns": {}, "crosses": [["a", "a"]]}, "/crosses/0"),
        ({"columns": {}, "crosses": [["a", "y"]]}, "/crosses/0/1"),
        ({"columns": {}, "crosses": [["id", "a"]]}, "/crosses/0/0"),
        ({"columns": {"weight": "m.w"}, "crosses": [["a", "m.w"]]}, "/crosses/0/1"),
        ({"columns": {"types": {"a": "category", "a=": "number"}}}, "/columns/types/a="),
        ({"columns": {"types": {"a==b": "text", "a=": "category"}}}, "/columns/types/a==b"),
        ({"columns": {"types": {"a": "text"}}, "crosses": [["a", "b"]]}, "/crosses/0/0"),
        ({"columns": {"types": {"a": "time"}}, "crosses": [["a", "b"]]}, "/crosses/0/0"),
        ({"columns": {"ignore": ["a"]}, "crosses": [["a", "b"]]}, "/crosses/0/0"),
        ({"columns": {"ignore": ["a"]}, "crosses": [["a.c", "b"]]}, "/crosses/0/0"),
        ({"columns": {"types": {"a": "ignore"}}, "crosses": [["b", "a"]]}, "/crosses/0/1"),
        ({"columns": {"unknown": "refuse"}, "crosses": [["a", "b"]]}, "/crosses/0/0"),
    ],
)
def test_a_contradiction_is_refused_by_its_field(given, field):
    with pytest.raises(InvalidSpec) as refused:
        resolve_spec(given)
    assert refused.value.field == field

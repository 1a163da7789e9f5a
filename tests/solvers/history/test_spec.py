"""The field `history` of a specification: defaults, refusals, names, order and memory."""

import pytest

from dualstream.solvers import InvalidSpec, resolve_spec
from dualstream.solvers.history.spec import (
    column_count,
    column_names,
    group_columns,
    half_life_seconds,
    slots_of,
    table_bytes,
)

TYPES = {
    "at": "time",
    "card": "category",
    "terminal": "category",
    "merchant": "ignore",
    "present": "boolean",
    "amount": "number",
    "note": "text",
}
COLUMNS = {"label": "fraud", "id": "tx", "weight": "w", "types": TYPES}


def resolved(*groups, **fields):
    spec = {"columns": COLUMNS, "history": list(groups), **fields}
    result = resolve_spec(spec)
    assert resolve_spec(result) == result
    return result["history"]


def names(*groups, **fields):
    return [one.name for group in resolved(*groups, **fields) for one in group_columns(group)]


def error_of(*groups, **fields):
    with pytest.raises(InvalidSpec) as caught:
        resolved(*groups, **fields)
    return caught.value


def group_of(**fields):
    return {"by": "card", "time": "at", "stats": ["count"], "half_life": ["1h"], **fields}


def test_defaults_are_written_out_in_a_fixed_order():
    stats = ["difference", "since", "mean", "count"]
    (group,) = resolved(group_of(of="amount", stats=stats, half_life=["30d", "1h"]))
    assert list(group.items()) == [
        ("by", ["card"]),
        ("time", "at"),
        ("of", "amount"),
        ("stats", ["since", "count", "mean", "difference"]),
        ("half_life", ["30d", "1h"]),
        ("labels", 0),
        ("keys", 65_536),
    ]


def test_short_forms():
    (group,) = resolved({"by": "card", "stats": "count", "half_life": 10.0})
    assert group == {
        "by": ["card"],
        "time": None,
        "of": None,
        "stats": ["count"],
        "half_life": [10],
        "labels": 0,
        "keys": 65_536,
    }
    assert type(group["half_life"][0]) is int
    (group,) = resolved({"by": ["card"], "labels": 3, "keys": 1000})
    assert (group["stats"], group["half_life"], group["labels"]) == ([], [], 3)
    (group,) = resolved({"of": "amount", "stats": "change"})
    assert (group["by"], group["keys"]) == ([], 1)


def test_no_groups_leave_the_specification_as_without():
    plain = resolve_spec({"columns": COLUMNS})
    for none in (None, []):
        assert resolve_spec({"columns": COLUMNS, "history": none}) == plain
        assert resolve_spec({"history": none}) == resolve_spec({})
    assert "history" not in plain


def test_history_is_no_field_of_an_algorithm():
    fields = {"columns": COLUMNS, "history": [group_of()]}
    assert resolve_spec(fields)["algorithm"] == "portfolio"
    for name in ("dual_ascent", "boosted"):
        assert resolve_spec(fields | {"algorithm": name})["history"][0]["by"] == ["card"]


def test_history_beside_ages():
    aged = COLUMNS | {"types": TYPES | {"at": {"kind": "time", "parts": ["hour", "age"]}}}
    assert resolved(group_of(), columns=aged)[0]["time"] == "at"


def test_names_in_their_order():
    stats = "label_mean label_count z difference deviation mean sum count since change last"
    both = {"of": "amount", "stats": stats.split(), "half_life": ["1h", "7d"], "labels": 2}
    assert names({"by": ["card", "merchant"], "time": "at", **both}) == [
        "card*merchant.amount.last",
        "card*merchant.amount.change",
        "card*merchant.since",
        "card*merchant.labels.1",
        "card*merchant.labels.2",
        *(
            f"card*merchant.{stat}.{half_life}"
            for stat in (
                "count",
                "amount.sum",
                "amount.mean",
                "amount.deviation",
                "amount.difference",
                "amount.z",
                "label_count",
                "label_mean",
            )
            for half_life in ("1h", "7d")
        ),
    ]


def test_names_without_a_key_begin_with_the_value_or_the_time():
    of_value = {"time": "at", "of": "amount", "stats": ["change", "since", "count", "mean"]}
    assert names(of_value | {"half_life": [10, 2.5]}) == [
        "amount.change",
        "amount.since",
        "amount.count.10",
        "amount.count.2.5",
        "amount.mean.10",
        "amount.mean.2.5",
    ]
    assert names({"time": "at", "stats": ["since"], "labels": 1}) == ["at.since", "at.labels.1"]


def test_columns_of_classes_have_no_names_yet():
    group = group_of(stats=["count", "label_mean"], labels=2, half_life=["1h", "1d"])
    groups = resolved(group, task="multiclass")
    assert column_names(groups, "multiclass") == ["card.count.1h", "card.count.1d"]
    assert column_count(groups, "multiclass") == 2 + 2 * 10 + 2 * 10
    assert len(column_names(groups, "binary")) == column_count(groups, "binary") == 6


def test_composed_names():
    types = {"cafe\u0301": "category"}
    (group,) = resolved({"by": "caf\u00e9", "labels": 1}, columns={"types": types})
    assert group["by"] == ["caf\u00e9"]


REFUSED = {
    "no object": (3, "", "an object with some of by, time, of"),
    "unknown field": (group_of(windows=3), "/windows", "not a known field"),
    "unknown key": (
        group_of(by="shop"),
        "/by",
        "a column that `columns.types` declares as category, boolean, number or ignore, got 'shop'",
    ),
    "second key": (group_of(by=["card", "shop"]), "/by/1", "`columns.types` declares"),
    "key of text": (group_of(by="note"), "/by", "`columns.types` declares"),
    "key of times": (group_of(by="at"), "/by", "`columns.types` declares"),
    "key that is no name": (group_of(by=[3]), "/by/0", "the name of a column"),
    "five keys": (group_of(by=["card"] * 5), "/by", "at most 4"),
    "key twice": (group_of(by=["card", "card"]), "/by/1", "another column than those before it"),
    "label as key": (group_of(by="fraud"), "/by", "the label's past is in `labels`"),
    "id as key": (group_of(by=["card", "tx"]), "/by/1", "another column: this one is the id"),
    "weight as key": (group_of(by="w"), "/by", "another column: this one is the weight"),
    "unknown time": (group_of(time="when"), "/time", "declares as time, got 'when'"),
    "time of another type": (group_of(time="amount"), "/time", "declares as time"),
    "value of another type": (group_of(of="card", stats="mean"), "/of", "declares as number"),
    "label as value": (group_of(of="fraud", stats="mean"), "/of", "the label's past"),
    "unused value": (group_of(of="amount"), "/of", "left out, or `stats` has one of last, change"),
    "no name": ({"stats": "count", "half_life": 10}, "", "with `by`, `of` or `time`"),
    "no statistic": (
        {"by": "card"},
        "/stats",
        "a list of some of last, change, since, count, sum, mean, deviation, difference, z, "
        "label_count, label_mean; or `labels` is from 1 to 8, got None",
    ),
    "unknown statistic": (group_of(stats=["count", "maen"]), "/stats/1", "did you mean 'mean'"),
    "statistic twice": (group_of(stats=["count", "count"]), "/stats/1", "another statistic"),
    "labels as a statistic": (
        group_of(stats=["labels"]),
        "/stats/0",
        'a field of the group, `"labels": 3`',
    ),
    "statistic without a value": (
        group_of(stats=["count", "mean"]),
        "/stats/1",
        "left out, or `of` names the column of its mean, got 'mean'",
    ),
    "since without a time": (
        {"by": "card", "stats": ["since"]},
        "/stats/0",
        "left out, or `time` names a column of times, got 'since'",
    ),
    "no half-life": (group_of(half_life=None), "/half_life", "as count is decayed"),
    "unused half-life": (group_of(stats="since"), "/half_life", "left out, or `stats` has one of"),
    "half-life without a time": (
        group_of(time=None, half_life=[10, "1h"]),
        "/half_life/1",
        "a number of rows, or `time` names a column of times, got '1h'",
    ),
    "half-lives of two kinds": (group_of(half_life=["1h", 3]), "/half_life/1", "a time as the f"),
    "half-lives of rows first": (group_of(half_life=[3, "1h"]), "/half_life/1", "a number of rows"),
    "half-life twice": (group_of(half_life=["60m", "1h"]), "/half_life/1", "another half-life"),
    "nine half-lives": (group_of(half_life=[*range(1, 10)]), "/half_life", "at most 8"),
    "half-life of no rows": (group_of(half_life=0), "/half_life", "a number of rows in [0.1, 1e+0"),
    "half-life that is a flag": (group_of(half_life=True), "/half_life", "a time such as 90s"),
    "half-life of years": (group_of(half_life="1y"), "/half_life", "a time such as 90s"),
    "fraction of an hour": (group_of(half_life=["1.5h"]), "/half_life/0", "a time such as 90s"),
    "half-life of a millennium": (group_of(half_life="365000d"), "/half_life", "up to 36500d"),
    "nine labels": (group_of(labels=9), "/labels", "a whole number in [0, 8]"),
    "few keys": (group_of(keys=999), "/keys", "a whole number in [1000, 4000000]"),
    "many keys": (group_of(keys=4_000_001), "/keys", "a whole number in [1000, 4000000]"),
    "keys without a key": (
        {"of": "amount", "stats": "last", "keys": 1000},
        "/keys",
        "a whole number in [1, 1]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_group(name):
    group, pointer, reason = REFUSED[name]
    error = error_of(group_of(), group)
    assert error.field == f"/history/1{pointer}"
    assert reason in str(error)
    assert [one.field for one in error.violations] == [error.field]


def test_refused_without_columns():
    error = error_of(group_of(), columns=None)
    assert (error.field, error.allowed) == (
        "/history",
        "left out, or given with `columns`, which make rows flat",
    )
    assert error_of(columns=COLUMNS, history={}).field == "/history"
    assert "at most 64" in str(error_of(columns=COLUMNS, history=[group_of()] * 65))


def test_refused_for_its_names():
    stats = ["since", "count"]
    twice = group_of(stats=stats), group_of(stats=["since"], half_life=None)
    error = error_of(*twice)
    assert error.field == "/history/1"
    assert "without the column `card.since`: it is a column of group 0, too" in str(error)
    types = TYPES | {"card.count.1h": "number"}
    error = error_of(group_of(), columns=COLUMNS | {"types": types})
    assert error.field == "/history/0"
    assert "`card.count.1h`: it is a column of the rows, too" in str(error)
    error = error_of(group_of(), columns=COLUMNS | {"id": "card.count.1h"})
    assert "it is the id, too" in str(error)
    types = TYPES | {"k" * 1020: "category"}
    error = error_of(group_of(by="k" * 1020), columns=COLUMNS | {"types": types})
    assert "names have at most 1024 characters" in str(error)


def test_at_most_64_columns_in_all():
    six = {"half_life": [1, 2, 3, 4, 5, 6, 7, 8], "stats": ["count", "mean", "sum", "z"]}
    groups = [{"by": by, "of": "amount", **six} for by in ("card", "terminal")]
    assert len(names(*groups)) == 64
    error = error_of(*groups, {"by": "present", "labels": 1})
    assert error.field == "/history"
    assert "at most 64 columns in all, not 65" in str(error)
    classes = group_of(stats="label_mean", labels=6)
    assert len(names(classes)) == 7
    assert "not 70: " in str(error_of(classes, task="multiclass"))
    assert "10 classes have one each" in str(error_of(classes, task="multiclass"))


def test_errors_of_several_groups_are_listed_and_none_that_follow_from_them():
    error = error_of(
        group_of(time="when"),
        group_of(by=["card", "shop"], stats=["count", "mean", "nope"]),
        group_of(of="card", stats=["mean"], keys=3),
    )
    assert {one.field for one in error.violations} == {
        "/history/0/time",
        "/history/1/by/1",
        "/history/1/stats/1",
        "/history/1/stats/2",
        "/history/2/of",
        "/history/2/keys",
    }
    wrong = COLUMNS | {"types": TYPES | {"at": "tme"}}
    assert [one.field for one in error_of(group_of(), columns=wrong).violations] == [
        "/columns/types/at"
    ]


BYTES_A_SLOT = {
    "time and counts": (group_of(half_life=["1h", "1d", "7d"]), 16 + 8 + 3 * 8),
    "time, weights and means": (
        group_of(of="amount", stats=["count", "mean"], half_life=["1h", "1d", "7d"]),
        16 + 8 + 3 * 16,
    ),
    "no time": ({"by": "card", "stats": "count", "half_life": 10}, 16 + 8),
    "scatter": (group_of(of="amount", stats=["z"]), 16 + 8 + 24),
    "last value": ({"by": "card", "of": "amount", "stats": ["last", "change"]}, 16 + 8),
    "labels": (group_of(stats=[], half_life=None, labels=3), 16 + 8 + 24),
    "label weight": (group_of(stats="label_count"), 16 + 8 + 8),
    "label weight and mean": (group_of(stats=["label_count", "label_mean"]), 16 + 8 + 16),
}


@pytest.mark.parametrize("name", BYTES_A_SLOT)
def test_size_of_a_slot(name):
    group, size = BYTES_A_SLOT[name]
    assert table_bytes(resolved(group | {"keys": 6000}), "binary") == 8000 * size


def test_size_with_classes():
    groups = resolved(group_of(stats="label_mean", keys=6000), task="multiclass")
    assert table_bytes(groups, "multiclass") == 8000 * (16 + 8 + 8 + 80)


def test_a_million_keys_with_three_half_lives_take_96_mb():
    group = group_of(of="amount", stats="mean", half_life=["1h", "1d", "7d"], keys=1_000_000)
    assert table_bytes(resolved(group), "binary") / 1e6 == pytest.approx(96, rel=1e-4)
    assert (slots_of(1_000_000), slots_of(6), slots_of(1)) == (1_333_336, 8, 8)


def test_tables_of_more_than_256_mb_are_refused_at_the_largest():
    small = group_of(by="terminal", keys=3_000_000)
    large = group_of(of="amount", stats=["mean"], half_life=["1h", "1d"], keys=4_000_000)
    error = error_of(small, large)
    assert (error.field, error.value) == ("/history/1/keys", 4_000_000)
    assert "lower, or its group has fewer half-lives or statistics" in str(error)
    assert "its table takes 299 MB and all tables 427 MB; the limit is 256 MB" in str(error)
    assert resolved(small, large | {"keys": 1_700_000})


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h", 3600), ("30d", 2592e3), ("2w", 1209600)]
)
def test_seconds_of_a_half_life(text, seconds):
    assert half_life_seconds(text) == seconds

"""`dualstream infer` on columns with some values that do not fit.

The file that it read, learned with its proposal, loses no row but those that its warnings announce.
"""

import io
import json
import re
from datetime import UTC, datetime, timedelta
from itertools import product

import pyarrow as pa
import pytest

from dualstream.client import BadInput, NoRows
from dualstream.service.codecs import RowSchema, parse_body
from dualstream.service.features.infer.forms import form_of
from dualstream.service.features.infer.propose import propose
from dualstream.service.features.infer.sample import sample_of
from dualstream.solvers import resolve_spec

N = 400
CSV, COMMA, NDJSON = "text/csv", "text/csv; decimal=%2C; delimiter=%3B", "application/x-ndjson"
JSON_KIND, ARROW = "application/json", "application/vnd.apache.arrow.stream"
START = datetime(2024, 1, 1, tzinfo=UTC)
ANNOUNCED = re.compile(
    r"([\d,]+) (?:rows? of the sample will be refused"
    r"|of [\d,]+ rows ha(?:s|ve) no label|rows? cannot be read)"
)
NUMBERS = [round(0.37 * n % 91 + 5, 2) for n in range(N)]
WHOLE = [n * n % 1009 for n in range(N)]
TIMES = [(START + timedelta(minutes=97 * n)).isoformat() for n in range(N)]
YS = [n * 7 % 3 % 2 for n in range(N)]


def csv_of(columns, delimiter=","):
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join(f"{delimiter.join(map(str, row))}\n" for row in rows).encode()


def ndjson_of(columns):
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows).encode()


def learned(body, kind, label=None):
    """The proposal, and what it makes of the same body: no row is lost without a warning."""
    proposal = propose(sample_of(body, kind, 10_000), label)
    parsed = parse_body(RowSchema(resolve_spec(proposal.spec)), kind, body, labelled=True)
    results = [int(one.replace(",", "")) for w in proposal.warnings for one in ANNOUNCED.findall(w)]
    assert len(parsed.errors) == sum(results), (proposal.warnings, parsed.errors[:3])
    return proposal, len(parsed.errors)


def with_odd(values, odd, every=N):
    """The values with an odd one in each `every` rows."""
    return [odd if n % every == 5 else one for n, one in enumerate(values)]


def name_of(kind):
    return kind if isinstance(kind, str) else kind["kind"]


ODD = (
    "$5.00 12% #DIV/0! \\N .. (null) 1.2.3 1e400 9007199254740993 <5 ~3 12.5a 0x1F 007 error"
    " n.a. 1.#QNAN [NULL] NaT undefined \u0661\u0662 \u2014 \u22123.5 (12.50) inf -inf 1_000"
).split() + ["2024-05-06 12:30", "not available", "1,250.00", "see note"]


def test_one_odd_value_among_numbers_leaves_a_column_of_numbers(subtests):
    for odd, values in product(ODD, [NUMBERS, WHOLE]):
        with subtests.test(odd=odd, values=values):
            quoted = f'"{odd}"' if "," in odd else odd
            body = csv_of({"price": with_odd(values, quoted), "b": NUMBERS, "y": YS})
            proposal, lost = learned(body, CSV)
            choice = proposal.choices["price"]
            assert name_of(choice.kind) == "number" and proposal.spec["task"] == "binary", choice
            assert lost <= 1
            form = form_of(odd).name
            if form not in ("NULL", "MAYBE_NULL"):
                (warning,) = proposal.warnings
                assert "column 'price'" in warning
                assert form in ("BIG", "HUGE") or repr(odd)[1:-1] in warning, warning


MANY = [
    ("price", [*["error"] * 20, *["see note"] * 10, *NUMBERS[30:]], "number", 0),
    ("price", ["<5"] * 20 + NUMBERS[20:], "number", 0),
    ("price", [f"{n}.5x" for n in range(30)] + NUMBERS[30:], "number", 30),
    ("price", [f"{n}.5x" for n in range(100)] + NUMBERS[100:], "ignore", 0),
    ("floors", ["3+"] * 30 + [n % 3 for n in range(N - 30)], "category", 0),
    ("plz", ["01234"] * 30 + [10000 + n for n in WHOLE[30:]], "ignore", 0),
    ("n", ["01234"] * 30 + [10000 + n % 50 for n in range(N - 30)], "category", 0),
    ("at", with_odd(TIMES, "2016-12-31T23:59:60Z"), "time", 1),
    ("at", with_odd(TIMES, "0000-00-00", 10), "time", 0),
    ("at", with_odd(TIMES, "9999-12-31T23:59:59-14:00"), "time", 1),
    ("at", with_odd(TIMES, "soon", 20), "time", 0),
    ("created", with_odd([1_700_000_000 + n for n in WHOLE], 0, 20), "time", 0),
    ("created", with_odd([1_700_000_000 + n for n in WHOLE], 0, 7), "time", 0),
    ("created", with_odd([1_700_000_000_000_000 + n for n in WHOLE], -1, 20), "time", 0),
    ("created", [1_700_000_000_000_000_000 + n for n in WHOLE], "time", 0),
    ("date", [20240301 + n % 30 for n in range(N)], "time", 0),
    ("date", with_odd([20240301 + n % 30 for n in range(N)], 20240230), "time", 1),
    ("at", [f"2024-03-09 22:15:{n % 60:02} UTC" for n in range(N)], "time", 0),
    ("on", with_odd(["yes", "no"] * (N // 2), "perhaps"), "boolean", 0),
    ("on", with_odd(["1", "0"] * (N // 2), "N/K", 50), "boolean", 0),
    ("children", with_odd(["1", "0"] * (N // 2), 2, 50), "number", 0),
    ("at", [f"09 Mar 2024 {n % 24:02}:{n % 60:02}:07 +0000" for n in range(N)], "ignore", 0),
    ("at", [f"[09/Mar/2024:{n % 24:02}:{n % 60:02}:07 +0000]" for n in range(N)], "ignore", 0),
    ("at", [f"Sat Mar  9 {n % 24:02}:{n % 60:02}:07 2024" for n in range(N)], "ignore", 0),
    ("price", [f"${n}" for n in NUMBERS], "ignore", 0),
    ("price", [f"{n}%" for n in NUMBERS], "ignore", 0),
    ("price", [f"({n})" for n in NUMBERS], "ignore", 0),
    ("price", [f"\u2212{n}" for n in NUMBERS], "ignore", 0),
    ("price", [f'"1,{n % 900 + 100}.50"' for n in range(N)], "ignore", 0),
    ("price", [f"{n % 4}%" for n in range(N)], "category", 0),
    ("year", list(range(1620, 1620 + N)), "number", 0),
]


def test_a_column_has_the_type_of_most_of_its_values(subtests):
    for name, values, kind, lost in MANY:
        with subtests.test(name=name, values=values, kind=kind, lost=lost):
            body = csv_of({name: values, "b": NUMBERS, "y": YS})
            proposal, refused = learned(body, CSV)
            choice = proposal.choices[name]
            assert (name_of(choice.kind), refused) == (kind, lost), choice
            if (
                kind == "ignore"
                and name in ("price", "at")
                and len({str(v)[-1] for v in values}) < 11
            ):
                assert "convert them" in choice.reason or "like an id" in choice.reason


def test_values_that_have_to_be_converted_are_in_a_warning():
    body = csv_of({"price": [f"${n}" for n in NUMBERS], "b": NUMBERS, "y": YS})
    (warning,) = learned(body, CSV)[0].warnings
    assert warning.startswith("column 'price' is ignored") and "'$5" in warning


def test_an_infinity_of_arrow_refuses_its_row_alone():
    table = pa.table({"a": with_odd(NUMBERS, float("inf")), "b": NUMBERS, "y": YS})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    proposal, lost = learned(sink.getvalue(), ARROW)
    assert proposal.choices["a"].kind == "number" and lost == 1


def test_a_value_of_one_column_is_no_mark_of_all():
    discount = ["none" if n % 4 else 0.1 * (n % 10 + 1) for n in range(N)]
    ys = ["none" if n % 2 else "spam" for n in range(N)]
    proposal, lost = learned(csv_of({"discount": discount, "b": NUMBERS, "label": ys}), CSV)
    assert lost == 0 and proposal.spec["task"] == "binary"
    assert proposal.spec["labels"] == ["none", "spam"]
    kind = proposal.choices["discount"].kind
    assert kind == {"kind": "number", "missing": ["none"]}
    assert proposal.missing("discount") == 300
    assert proposal.spec["columns"]["missing"] == ["", "NaN", None]


def test_a_null_that_is_a_country_is_missing_in_other_columns_alone():
    country = [("NA", "DE", "FR")[n % 3] for n in range(N)]
    body = csv_of({"country": country, "a": with_odd(NUMBERS, "NA", 10), "y": YS})
    columns = learned(body, CSV)[0].spec["columns"]
    assert columns["missing"] == ["", "NaN", None]
    assert columns["types"] == {"country": "category", "a": {"kind": "number", "missing": ["NA"]}}
    other = csv_of({"country": ["DE"] * N, "a": with_odd(NUMBERS, "NA", 10), "y": YS})
    assert learned(other, CSV)[0].spec["columns"]["missing"] == ["", "NaN", "NA", None]


def test_files_joined_with_their_headers_keep_all_rows_but_the_header():
    one = csv_of({"a": NUMBERS, "sure": ["y" if n % 3 else "n" for n in range(N)], "y": YS})
    proposal = propose(sample_of(one + one, CSV, 10_000))
    reason = f"1 row cannot be read, such as row {N}: the record repeats the header"
    assert proposal.warnings[-1] == reason
    assert proposal.spec["columns"]["types"] == {"a": "number", "sure": "category"}
    assert (proposal.missing("sure"), proposal.spec["task"]) == (0, "binary")


def test_rows_with_a_null_as_label_have_no_label(subtests):
    for null in ["\\N", "(null)", "[NULL]", "NaT", "n.a.", "not available", "undefined", "#N/A"]:
        with subtests.test(null=null):
            ys = with_odd(["a", "b", "c"] * (N // 3) + ["a"] * (N % 3), null, 10)
            body = csv_of(
                {"a": with_odd(NUMBERS, null, 20), "c": with_odd(TIMES, null, 20), "y": ys}
            )
            proposal, lost = learned(body, CSV)
            assert (proposal.spec["task"], lost) == ("multiclass", 40)
            assert proposal.spec["columns"]["missing"] == ["", "NaN", null, None]
            assert proposal.spec["columns"]["types"] == {"a": "number", "c": "time"}


def test_a_text_among_labels_of_numbers_refuses_its_row(subtests):
    for odd, ys in product(["error", "?!", "12.5a"], [YS, NUMBERS]):
        with subtests.test(odd=odd, ys=ys):
            body = csv_of({"a": NUMBERS, "y": with_odd(ys, odd)})
            proposal, lost = learned(body, CSV, "y")
            assert lost == 1 and proposal.spec["task"] == ("binary" if ys is YS else "regression")


def test_a_decimal_comma_is_read_in_all_columns():
    columns = {
        "price": [str(n).replace(".", ",") for n in NUMBERS], "on": ["1,0", "0,0"] * (N // 2),
        "size": [f"{n % 3},0" for n in range(N)], "at": [f"{1_711_850_400 + n},5" for n in WHOLE],
        "version": ["1.2.3", "1.3.1"] * (N // 2), "note": ["um 5 Euro"] * N, "y": YS,
    }  # fmt: skip
    body = csv_of(columns, ";")
    proposal, lost = learned(body, COMMA)
    kinds = {name: name_of(choice.kind) for name, choice in proposal.choices.items()}
    assert lost == 0 and kinds == {
        "price": "number", "on": "boolean", "size": "number", "at": "time",
        "version": "category", "note": "ignore", "y": "label",
    }  # fmt: skip


def test_labels_of_two_numbers_have_one_task_in_all_formats():
    columns = {"a": NUMBERS, "y": [1 + y for y in YS]}
    for body, kind in ((csv_of(columns), CSV), (ndjson_of(columns), NDJSON)):
        proposal, lost = learned(body, kind)
        assert lost == 0 and proposal.spec["labels"] == ["1", "2"]


def test_lists_of_numbers_are_no_categories():
    columns = {"v": [[n, 0.5] for n in NUMBERS], "tags": [["a", "b"]] * N, "a": NUMBERS, "y": YS}
    proposal, _ = learned(ndjson_of(columns), NDJSON)
    assert proposal.choices["v"].kind == "ignore" and "lists of numbers" in proposal.warnings[0]
    assert proposal.choices["tags"].kind == "category"


HEADLESS = [
    csv_of({"5.1": NUMBERS, "3.5": NUMBERS, "a": ["a", "b"] * (N // 2)}),
    csv_of({"6": WHOLE, "148": WHOLE, "33.6": NUMBERS, "1": YS}),
]


def test_a_file_without_a_header_is_named(subtests):
    for body in HEADLESS:
        with subtests.test(body=body):
            with pytest.raises(BadInput, match="looks like a row, not like names of columns"):
                propose(sample_of(body, CSV, 10_000))


def test_years_and_numbers_are_names_of_columns():
    columns = {str(n): NUMBERS for n in range(2019, 2024)} | {"y": YS}
    assert learned(csv_of(columns), CSV)[1] == 0
    columns = {str(n): NUMBERS for n in range(5)}
    assert learned(csv_of(columns), CSV, "3")[1] == 0


def test_a_column_without_a_name_or_with_a_long_one_makes_its_row_bad():
    for name in ("", "n" * 1025):
        rows = [{"a": 0.5 + n, "y": n % 2} | ({name: 1} if n < 3 else {}) for n in range(40)]
        lines = "\n".join(map(json.dumps, rows)).encode()
        for body, kind in ((lines, NDJSON), (json.dumps(rows).encode(), JSON_KIND)):
            proposal, lost = learned(body, kind)
            assert lost == 3 and set(proposal.choices) == {"a", "y"}
        with pytest.raises(NoRows, match=r"row 0: .*a column has"):
            sample_of(json.dumps(rows[:3]).encode(), JSON_KIND, 10)


def test_a_repeated_key_makes_its_row_bad_in_all_formats():
    good = [json.dumps({"a": n / 8, "y": n % 2}) for n in range(40)]
    rows = ['{"a": 1, "a": 2, "y": 1}', *good]
    for body, kind in (("\n".join(rows), NDJSON), (f"[{','.join(rows)}]", JSON_KIND)):
        assert learned(body.encode(), kind)[1] == 1


def test_the_advice_of_a_warning_is_a_valid_specification():
    columns = {"won": ["w" if y else "l" for y in YS], "a": NUMBERS, "y": YS}
    proposal, _ = learned(csv_of(columns), CSV)
    assert "set its type to `ignore`" in proposal.warnings[0]
    spec = proposal.spec
    spec["columns"]["types"]["won"] = "ignore"
    resolve_spec(spec)


def test_numbers_beyond_the_limit_are_no_ids_and_no_categories(subtests):
    huge = [f"{1 + n}.5e101" for n in range(N)]
    for many in (huge, with_odd(huge, 2.5, 3)):
        with subtests.test(many=many[:6]):
            proposal, _ = learned(csv_of({"price": many, "b": NUMBERS, "y": YS}), CSV)
            assert proposal.choices["price"].kind == "ignore"
            reason = "column 'price' is ignored: numbers beyond 1e100: '1.5e101'; scale them"
            assert reason in proposal.warnings
    with pytest.raises(BadInput, match=r"'y' has numbers beyond 1e100, such as 1.5e101.*scale"):
        learned(csv_of({"b": NUMBERS, "y": huge}), CSV)

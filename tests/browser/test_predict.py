"""First rows, predictions and commands to copy, in a real browser."""

import json
import re
import subprocess
import sys

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.pages import (
    ON_A_DESKTOP,
    ON_A_PHONE,
    card,
    create,
    learn,
    named,
    samples,
    wait_for_events,
)

TYPES = {"price": "number", "site": "category", "member": "boolean", "note": "text", "at": "time"}


def copied(page: Page, button: str) -> str:
    """The text that a button copies."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("navigator.clipboard.writeText('')")
    page.get_by_role("button", name=button).click()
    # This may be about an earlier text.
    expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_visible()
    return page.wait_for_function("navigator.clipboard.readText()").json_value()


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout


@ON_A_DESKTOP
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("hashed", {"algorithm": "sgd", "features": "hashed"}),
        ("indexed", {"algorithm": "sgd", "features": {"kind": "indexed", "dim": 3}}),
        (
            "flat",
            {
                "algorithm": "sgd",
                "columns": {"types": TYPES, "label": "it's"},
                "labels": ["no", "yes"],
            },
        ),
    ],
)
def test_the_first_commands_run_as_they_are(page: Page, server: httpx.Client, name, spec):
    model = named(page, name)
    create(server, model, **spec)
    page.goto(f"/#/models/{model}")
    wait_for_events(page)
    steps = card(page, "Send the first rows")
    curl = copied(page, "Copy")
    assert curl == steps.locator("pre").inner_text() and curl.startswith("curl ")
    steps.get_by_role("button", name="Python").click()
    python = copied(page, "Copy")
    assert json.loads(run("bash", "-c", curl))["learned"] == 1
    # The page shows its charts as soon as there is a row.
    expect(steps).to_be_hidden()
    expect(card(page, "Error rate")).to_contain_text("Now:")
    assert "Predicted(" in run(sys.executable, "-W", "error", "-c", python)
    assert server.get(f"/models/{model}").json()["samples"] == 2


def test_the_form_has_a_field_for_each_column(page: Page, server: httpx.Client, screenshot):
    model = named(page, "form")
    create(server, model, algorithm="dual_ascent", loss="hinge", features="hashed")
    rows = samples(200)
    learn(server, model, rows)
    page.goto(f"/#/models/{model}")
    tried = card(page, "Try a prediction")
    heat, site = tried.get_by_label("heat number"), tried.get_by_label("site category")
    # The fields have the last row.
    expect(heat).to_have_value(f"{rows[-1]['x']['heat']:.6g}")
    expect(site).to_have_value("north")
    heat.fill("1.5")
    tried.get_by_label("load number").fill("-1")
    x = {"heat": 1.5, "load": -1, "site": "north"}
    request = tried.get_by_label("Features, as JSON")
    tried.get_by_text("As JSON", exact=True).click()
    assert json.loads(request.input_value()) == x
    tried.get_by_role("button", name="Predict").click()
    predicted = server.post(f"/models/{model}/predict", json={"x": x}).json()
    expect(tried.locator(".result")).to_have_text(f"predicted label {predicted['label']}")
    expect(tried).to_contain_text(f"score {predicted['score']:.4g}"[:9])
    weights = server.get(f"/models/{model}/weights").json()
    weight = {one["name"]: one["weight"] for one in weights["weights"]}
    parts = page.get_by_role("region", name="What each feature adds to the score")
    for feature, value in (("heat", 1.5), ("load", -1.0), ("site", 1.0)):
        name = "site=north" if feature == "site" else feature  # a string is a feature of its own
        row = parts.get_by_role("row").filter(
            has=page.get_by_role("cell", name=feature, exact=True)
        )
        got = float(row.get_by_role("cell").nth(2).inner_text())
        assert abs(got - weight[name] * value) < 2e-3 * (1 + abs(got))
        width = float(row.locator("rect").get_attribute("width"))
        most = max(abs(weight["heat"] * 1.5), abs(weight["load"]), abs(weight["site=north"]))
        assert width == pytest.approx(50 * abs(weight[name] * value) / most, rel=0.01)
    screenshot(page, "predict")
    # Both ways of writing a row are one row.
    request.fill('{"heat": 2}')
    expect(heat).to_have_value("2")
    expect(site).to_have_value("")
    site.fill("it's")
    assert json.loads(request.input_value()) == {"heat": 2, "site": "it's"}
    heat.fill("")
    assert json.loads(request.input_value()) == {"site": "it's"}
    answer = json.loads(run("bash", "-c", copied(page, "Copy as curl")))
    again = server.post(f"/models/{model}/predict", json={"x": {"site": "it's"}}).json()
    assert answer["score"] == again["score"]


@ON_A_DESKTOP
def test_declared_columns_have_fields_of_their_kind(
    page: Page, server: httpx.Client, complaints: list[str]
):
    model = named(page, "declared")
    create(server, model, algorithm="sgd", columns={"types": TYPES, "label": "bought"})
    row = {"price": 2.5, "site": "a", "member": True, "note": "two words", "bought": 1}
    server.post(f"/models/{model}/learn", json=[row | {"at": "2024-05-06T09:30:00Z"}] * 3)
    page.goto(f"/#/models/{model}")
    tried = card(page, "Try a prediction")
    member = tried.get_by_label("member boolean")
    expect(member).to_have_value("true")
    expect(tried.get_by_label("at time")).to_have_value(re.compile("^20.*Z$"))
    expect(tried.get_by_label("site category")).to_have_value("a")
    member.select_option("left out")
    price = tried.get_by_label("price number")
    price.fill("cheap")
    tried.get_by_role("button", name="Predict").click()
    x = json.loads(tried.locator("textarea").input_value())
    assert "member" not in x and x["price"] == "cheap"
    # The field itself says what is wrong with it, until it changes.
    expect(price).to_be_focused()
    expect(price).to_have_attribute("aria-invalid", "true")
    expect(price).to_have_accessible_description("column 'price' must be a number, got 'cheap'")
    price.fill("3")
    expect(price).to_have_accessible_description("")
    assert len(complaints) == 1 and "422" in complaints.pop()


@ON_A_DESKTOP
def test_fields_of_a_slow_profile_do_not_touch_what_was_typed(page: Page, server: httpx.Client):
    model = named(page, "patient")
    create(server, model)
    learn(server, model, samples(40))
    requests: list[Route] = []
    page.route("**/columns", lambda route: requests.append(route))
    page.goto(f"/#/models/{model}")
    tried = card(page, "Try a prediction")
    tried.get_by_text("As JSON", exact=True).click()
    request = tried.get_by_label("Features, as JSON")
    typed = '{"heat":   2, "site": "south"}'
    request.fill(typed)
    while not requests:
        page.wait_for_timeout(10)
    expect(tried.get_by_label("heat number")).to_have_count(0)
    requests.pop().continue_()
    expect(tried.get_by_label("heat number")).to_have_value("2")
    expect(tried.get_by_label("site category")).to_have_value("south")
    expect(tried.get_by_label("load number")).to_have_value("")
    assert request.input_value() == typed


@ON_A_DESKTOP
def test_a_model_without_explanations_says_why(
    page: Page, server: httpx.Client, complaints: list[str]
):
    model = named(page, "nearest")
    create(server, model, algorithm="neighbours")
    learn(server, model, samples(60))
    page.goto(f"/#/models/{model}")
    wait_for_events(page)
    tried = card(page, "Try a prediction")
    with page.expect_response(re.compile("predict$")):
        tried.get_by_label("heat number").fill("1.5")
        page.get_by_role("button", name="Predict").click()
    expect(tried).to_contain_text("it compares whole rows")
    expect(tried).to_contain_text("score")
    assert len(complaints) == 1 and "409" in complaints.pop()


@ON_A_DESKTOP
def test_names_in_the_data_are_text(page: Page, server: httpx.Client):
    model = named(page, "markup")
    create(server, model, loss="hinge", features="hashed")
    name = "<img src=x onerror=alert(1)>"
    learn(server, model, [{"x": {name: 1.0, "k": name}, "y": 1}, {"x": {name: 2.0}, "y": 1}])
    page.goto(f"/#/models/{model}")
    tried = card(page, "Try a prediction")
    # A name with = is that of a category.
    field = tried.get_by_label("<img src category")
    expect(field).to_have_value("x onerror=alert(1)>")
    page.get_by_role("button", name="Predict").click()
    expect(tried.get_by_role("table")).to_contain_text("x onerror=alert(1)>")
    page.get_by_role("tab", name="Features").click()
    expect(card(page, "Largest weights")).to_contain_text(name)
    assert page.locator("main img").count() == 0


# Positions of the first two digits after a text, in one call, as events draw the table again.
DIGITS = """(card) => {
    const texts = [...card.querySelectorAll("bdi")];
    const share = texts.find((one) => one.textContent.includes("gnp.exe")).nextSibling;
    return [1, 2].map((at) => {
        const range = document.createRange();
        range.setStart(share, at);
        range.setEnd(share, at + 1);
        return range.getBoundingClientRect().left;
    });
}"""


@ON_A_DESKTOP
def test_a_text_that_turns_the_direction_leaves_its_share_as_it_is(
    page: Page, server: httpx.Client
):
    model = named(page, "turned")
    create(server, model, loss="hinge", features="hashed")
    text = "a\u202egnp.exe " + "x" * 150
    learn(server, model, [{"x": {"k": text}, "y": 1}])
    page.goto(f"/#/models/{model}/features")
    value = card(page, "Columns").locator("bdi").get_by_text("gnp.exe")
    expect(value).to_have_count(2)
    expect(value.first).to_be_visible()
    first, second = card(page, "Columns").evaluate(DIGITS)
    assert 0 < first < second
    assert card(page, "Columns").locator(".scroll").evaluate("e => e.scrollWidth <= e.clientWidth")


@ON_A_PHONE
def test_classes_and_numbers_are_predicted(page: Page, server: httpx.Client):
    price, kind = named(page, "rent"), named(page, "team")
    create(server, price, task="regression", algorithm="sgd", features="hashed")
    create(server, kind, task="multiclass", algorithm="sgd", features="hashed")
    rows = samples(60)
    learn(server, price, [row | {"y": row["x"]["heat"] * 3} for row in rows])
    learn(server, kind, [row | {"y": ["a", "b", "c"][n % 3]} for n, row in enumerate(rows)])
    for model, field, words in (
        (price, "score", "predicted value"),
        (kind, "label", "predicted label"),
    ):
        page.goto(f"/#/models/{model}")
        tried = card(page, "Try a prediction")
        tried.get_by_text("As JSON", exact=True).click()
        tried.get_by_label("Features, as JSON").fill(json.dumps(rows[0]["x"]))
        page.get_by_role("button", name="Predict").click()
        got = server.post(f"/models/{model}/predict", json={"x": rows[0]["x"]}).json()[field]
        shown = got if isinstance(got, str) else f"{got:.4g}"
        expect(tried.locator(".result")).to_have_text(f"{words} {shown}")
    top = tried.get_by_role("region", name="Most probable classes")
    expect(top.get_by_role("row")).to_have_count(4)
    expect(top.get_by_role("row").nth(1)).to_contain_text(got)


@ON_A_DESKTOP
def test_a_refused_prediction_is_an_error_with_its_reason(page, server, complaints):
    model = named(page, "refusing")
    create(server, model)
    learn(server, model, samples(40))
    page.goto(f"/#/models/{model}")
    tried = card(page, "Try a prediction")
    tried.get_by_text("As JSON", exact=True).click()
    for x, field in (('{"heat": 1e300, "load": 1}', "heat"), ('{"heat": 1, "load": [2]}', "load")):
        page.get_by_label("Features, as JSON").fill(x)
        page.get_by_role("button", name="Predict").click()
        marked = tried.get_by_label(f"{field} number")
        expect(marked).to_have_attribute("aria-invalid", "true")
        expect(tried.get_by_role("status").locator("p.error")).to_contain_text("refused")
        expect(tried.get_by_role("table")).to_have_count(0)
        expect(tried).not_to_contain_text("null")
        assert len(complaints) == 1 and "422" in complaints.pop()

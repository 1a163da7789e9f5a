"""The form for a new model in a real browser."""

import re

from playwright.sync_api import Page, expect

from dualstream.solvers.spec.algorithms import ALGORITHMS
from tests.browser.pages import ON_A_DESKTOP, card, named, pill

VISITS = "visit_no,at,zip,price,subject,bought\n" + "".join(
    f"{n},2024-05-{1 + n % 28:02}T{n % 24:02}:00,0{2134 + n % 3},{'NA' if n % 7 == 0 else n / 2},"
    f"free delivery for order {n},{'yes' if n % 3 == 0 else 'no'}\n"
    for n in range(40)
)


COMPILES = """() => {
  const real = fetch;
  window.fetch = async (path, options) => {
    if (String(path).includes("readyz?verbose"))
      return new Response('{"compiling": true}', {headers: {"content-type": "application/json"}});
    if (options?.method === "PUT") await new Promise((done) => (window.compiled = done));
    return real(path, options);
  };
}"""
"""Make the server one that compiles kernels before it answers a PUT, until `compiled` is called."""


def test_a_sample_of_rows_proposes_columns(page, server, complaints, screenshot):
    model = named(page, "visits")
    page.goto("/#/new")
    expect(page.get_by_role("radio")).to_have_count(3)
    page.get_by_label("Sample of your rows").fill(VISITS)
    columns = page.get_by_role("region", name="Columns of the sample")
    expect(columns.get_by_role("row")).to_have_count(7)
    expect(page.get_by_role("radio", name=re.compile("Two classes"))).to_be_checked()
    expect(page.get_by_label("Label", exact=True)).to_have_value("bought")
    expect(columns.get_by_label("Type of zip")).to_have_value("category")
    expect(columns.get_by_label("Type of visit_no")).to_have_value("ignore")
    expect(columns.get_by_role("row", name=re.compile("price"))).to_contain_text("6")
    columns.get_by_label("Type of zip").select_option("text")
    expect(columns.get_by_label("Type of zip")).to_be_focused()
    # A wrong choice is refused next to its column, and another label proposes another task.
    page.get_by_text("Advanced").click()
    page.get_by_label("More fields").fill('{"crosses": [["at.hour", "zip"]]}')
    expect(page.locator("#rest-error")).to_contain_text("/crosses/0/1")
    expect(page.get_by_role("button", name="Create")).to_be_disabled()
    columns.get_by_label("Type of zip").select_option("category")
    expect(page.locator("#rest-error")).to_be_empty()
    expect(page.get_by_role("button", name="Create")).to_be_enabled()
    page.get_by_label("Name", exact=True).fill(model)
    screenshot(page, "proposal")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name=model)).to_be_visible()
    spec = server.get(f"/models/{model}").json()["spec"]
    assert (
        spec["columns"]["types"]
        == {
            "at": {"kind": "time", "parts": ["hour", "weekday"]},
            "zip": "category",
            "price": "number",
            "subject": {"kind": "text", "ngrams": 1, "weights": "count"},
        }
        | spec["columns"]["types"]
    )
    assert spec["columns"]["ignore"] == ["visit_no"] and spec["labels"] == ["no", "yes"]
    sent = server.post(
        f"/models/{model}/learn", content=VISITS, headers={"content-type": "text/csv"}
    )
    assert sent.json()["learned"] == 40

    page.goto("/#/new")
    page.get_by_label("Sample of your rows").fill(VISITS.replace(",", ";"))
    page.get_by_label("Label", exact=True).select_option("price")
    expect(page.get_by_role("radio", name=re.compile("A number"))).to_be_checked()
    page.get_by_role("radio", name=re.compile("Two classes")).check()
    error = page.locator("#sample-error")
    expect(page.get_by_label("Label", exact=True)).to_have_value("bought")
    page.get_by_label("Label", exact=True).select_option("price")
    expect(error).to_contain_text("a binary one has two")
    page.get_by_label("Sample of your rows").fill('{"a": 1, "b": 2}\n{"a": 2, "b": 3}\n')
    expect(error).to_contain_text("no column is named as a label")
    assert len(complaints) == 2 and all("422" in one for one in complaints)
    complaints.clear()


CARDS = "at,card,shop,amount,fraud\n" + "".join(
    f"2026-05-{1 + n // 24:02}T{n % 24:02}:00:00Z,c{n * n % 11},s{n % 3},{n % 17 + 0.5},"
    f"{n * n % 5 == 0}\n"
    for n in range(200)
)


def test_a_proposed_history_is_taken_by_its_checkbox(page, server, screenshot):
    model = named(page, "cards")
    page.goto("/#/new")
    page.get_by_label("Sample of your rows").fill(CARDS)
    columns = page.get_by_role("region", name="Columns of the sample")
    expect(columns.get_by_label("Type of shop")).to_have_value("category")
    columns.get_by_label("Type of shop").select_option("text")
    history = page.get_by_role("checkbox", name="History")
    expect(history).not_to_be_checked()
    expect(page.get_by_text("values of card return")).to_be_visible()
    resolved = card(page, "Specification with defaults")
    expect(resolved).to_contain_text('"shop": {')
    expect(resolved).not_to_contain_text('"history"')
    history.check()
    expect(history).to_be_focused()
    # A type that the user chose stays, and one that cannot be a key is refused there.
    expect(columns.get_by_label("Type of shop")).to_have_value("text")
    expect(page.locator("#history-error")).to_contain_text("/history/1/by")
    columns.get_by_label("Type of shop").select_option("ignore")
    expect(page.locator("#history-error")).to_be_empty()
    expect(resolved).to_contain_text('"history"')
    page.get_by_label("Name", exact=True).fill(model)
    screenshot(page, "history")
    page.evaluate(COMPILES)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("Kernels of this algorithm are compiled first")).to_be_visible()
    page.evaluate("window.compiled()")
    expect(page.get_by_role("heading", name=model)).to_be_visible()
    spec = server.get(f"/models/{model}").json()["spec"]
    assert [group["by"] for group in spec["history"]] == [["card"], ["shop"]]
    assert spec["columns"]["types"]["shop"] == "ignore" and spec["columns"]["ignore"] == []
    sent = server.post(
        f"/models/{model}/learn", content=CARDS, headers={"content-type": "text/csv"}
    )
    assert sent.json()["learned"] == 200
    page.goto("/#/new")
    page.goto(f"/#/models/{model}")
    expect(card(page, "Columns")).to_contain_text("card.amount.difference.")
    predict = card(page, "Try a prediction")
    expect(predict.get_by_label("shop key")).to_have_value("")
    expect(predict.get_by_label("card category")).to_have_value(re.compile(r"c\d+"))
    expect(predict.get_by_label("at time")).to_have_value(re.compile("^20"))
    assert predict.get_by_label("card.since").count() == 0
    predict.get_by_label("shop key").fill("s1")
    predict.get_by_role("button", name="Predict").click()
    table = page.get_by_role("region", name="What each feature adds to the score")
    used = table.get_by_role("row").filter(has_text=re.compile("history"))
    expect(used.filter(has_text="card.since")).to_have_count(1)
    expect(used.filter(has_text="shop.since")).to_have_count(1)
    screenshot(page, "history-prediction")


@ON_A_DESKTOP
def test_the_specification_is_checked_while_it_is_typed(page: Page, server, complaints, screenshot):
    model = named(page, "typed")
    page.goto("/#/new")
    page.get_by_label("Name", exact=True).fill(model)
    page.get_by_text("Advanced").click()
    offered = (
        page.get_by_label("Algorithm")
        .locator("option")
        .evaluate_all("all => all.map(one => one.value)")
    )
    assert sorted(offered) == sorted(ALGORITHMS)
    page.get_by_label("Algorithm").select_option("dual_ascent")
    page.get_by_label("More fields").fill('{"loss": "hinges"}')
    expect(page.get_by_role("alert").filter(has_text="hinges")).to_contain_text("/loss")
    expect(page.get_by_role("button", name="Create")).to_be_disabled()
    page.get_by_label("More fields").fill('{"loss": "hinge", "strength": 7}')
    expect(card(page, "Specification with defaults")).to_contain_text('"strength": 7')
    screenshot(page, "create")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name=model)).to_be_visible()
    expect(pill(page, "waiting for rows")).to_be_visible()
    spec = server.get(f"/models/{model}").json()["spec"]
    assert (spec["loss"], spec["strength"], spec["features"]["kind"]) == (
        "hinge", 7, "hashed",
    )  # fmt: skip

    # A copy has the specification and no rows.
    page.get_by_role("button", name="Duplicate").click()
    dialog = page.get_by_role("dialog", name=f"Duplicate {model}")
    expect(dialog).to_contain_text("Rows, weights and versions are not copied")
    named_copy = dialog.get_by_label("Name of the new model")
    named_copy.fill(model)
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_contain_text(f"There is a model {model}.")
    named_copy.fill(f"{model}-2")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name=f"{model}-2")).to_be_visible()
    expect(dialog).to_have_count(0)
    assert server.get(f"/models/{model}-2").json()["spec"] == spec
    expect(pill(page, "waiting for rows")).to_be_visible()
    for button, status in (("Cancel", 200), ("Delete", 404)):
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name=button).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert server.get(f"/models/{model}-2").status_code == status
    expect(page.locator("#notices")).to_contain_text(f"{model}-2 was deleted.")
    # Requests that the deletion overtook.
    complaints[:] = [text for text in complaints if "Failed to load resource" not in text]

    # A refusal stays when the pending check of the specification is done.
    page.goto("/#/new")
    name, error = page.get_by_label("Name", exact=True), page.locator("#name-error")
    with page.expect_response("**/specs/resolve"):
        page.get_by_role("radio", name=re.compile("A number")).check()
        name.fill(model)
        name.press("Enter")
        expect(error).to_contain_text(f"There is a model {model}")
    expect(page.get_by_role("button", name="Create")).to_be_enabled()
    expect(error).to_contain_text("open that model")
    name.fill("two words")
    name.press("Enter")
    expect(error).to_contain_text("this one has a space")
    expect(name).to_have_attribute("aria-invalid", "true")
    assert len(complaints) == 1 and "409" in complaints.pop()

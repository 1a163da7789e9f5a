"""The dashboard in a real browser: create, stream, see it move, predict, go back."""

import json
import re

import httpx
import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from dualstream.service.api.api_keys import new_key
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.solvers.spec.algorithms import ALGORITHMS


def samples(n, seed=0, flip=False):
    random = np.random.default_rng(seed)
    x = random.standard_normal((n, 2))
    y = np.where((x[:, 0] - x[:, 1] > 0) != flip, 1, -1)
    return [
        {"x": {"heat": float(a), "load": float(b), "site": "north"}, "y": int(label)}
        for (a, b), label in zip(x, y, strict=True)
    ]


# Tests that do not depend on the screen run on one.
ON_A_DESKTOP = pytest.mark.parametrize("page", ["wide"], indirect=True)
ON_A_PHONE = pytest.mark.parametrize("page", ["phone"], indirect=True)


def learn(server: httpx.Client, model: str, rows: list) -> None:
    server.post(f"/models/{model}/learn", json={"samples": rows}).raise_for_status()


def card(page: Page, title: str) -> Locator:
    """The card of the page with this title."""
    return page.locator(f'section.card[aria-label="{title}"]')


def drawing(plot: Locator) -> str:
    """The picture that the canvas of a plot shows now."""
    return plot.locator("canvas").evaluate("c => c.toDataURL()")


def wait_until_redrawn(plot: Locator, before: str) -> None:
    """The text of a card changes before its plot is drawn. Fails after 30 s without a change."""
    canvas = plot.locator("canvas").element_handle()
    changed = "([canvas, before]) => canvas.toDataURL() !== before"
    plot.page.wait_for_function(changed, arg=[canvas, before])


def named(page: Page, base: str) -> str:
    """A model id for each screen."""
    return f"{base}-{page.viewport_size['width']}"


def test_from_nothing_to_a_moving_plot_and_back(page: Page, server: httpx.Client, screenshot):
    model = named(page, "pumps")
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
    # The server checks the specification while it is typed.
    page.get_by_label("More fields").fill('{"loss": "hinges"}')
    expect(page.get_by_role("alert").filter(has_text="hinges")).to_contain_text("/loss")
    expect(page.get_by_role("button", name="Create")).to_be_disabled()
    page.get_by_label("More fields").fill('{"loss": "hinge", "strength": 7}')
    expect(card(page, "Specification with defaults")).to_contain_text('"strength": 7')
    screenshot(page, "create")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name=model)).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    spec = server.get(f"/models/{model}").json()["spec"]
    assert (spec["loss"], spec["strength"], spec["features"]["kind"]) == (
        "hinge", 7, "hashed",
    )  # fmt: skip

    learn(server, model, samples(300))
    error = card(page, "Progressive error rate")
    expect(error).to_contain_text(re.compile(r"Now: last rows \d"))
    before = error.locator("p").inner_text()
    drawn = drawing(error)
    learn(server, model, samples(300, seed=1, flip=True))
    expect(error.locator("p")).not_to_have_text(before)
    wait_until_redrawn(error, drawn)
    metrics = server.get(f"/models/{model}/metrics").json()
    expect(card(page, "Drift")).to_contain_text("rose")
    expect(error).to_contain_text("Vertical lines: drift, worse (solid)")
    shown = f"since start {100 * metrics['since_start']['error_rate']:.1f} %"
    expect(error.locator("p")).to_contain_text(shown)
    expect(card(page, "Certificate")).to_contain_text(re.compile(r"gap 0?\.?\d*[1-9]"))
    ranking = card(page, "Ranking")
    expect(ranking).to_contain_text(f"AUC {metrics['rolling']['auc']:.4g}")
    fact = page.locator("dl.facts div").filter(has_text="AUC")
    expect(fact).to_contain_text(f"{metrics['since_start']['auc']:.4g}")

    page.get_by_label("Features, as JSON").fill('{"heat": 1.5, "load": -1, "site": "north"}')
    page.get_by_role("button", name="Predict").click()
    x = {"heat": 1.5, "load": -1, "site": "north"}
    score = server.post(f"/models/{model}/predict", json={"x": x}).json()["score"]
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
    assert f"{score:.3f}"[:4] in card(page, "Try a prediction").inner_text()

    refits = card(page, "Refits")
    refits.get_by_role("button", name="Compare with the optimum").click()
    # The solver thread has the lowest priority: on busy cores it gets a hundredth of one.
    expect(refits).to_contain_text(re.compile(r"regret over 600 rows\s*-?\d"), timeout=150_000)
    refits.get_by_role("button", name="Refit now").click()
    expect(refits.get_by_role("row").nth(1)).to_contain_text("done")
    screenshot(page, "model")

    page.get_by_label("Name").fill("good")
    page.get_by_role("button", name="Save version").click()
    back = page.get_by_role("button", name="Roll back to good")
    expect(back).to_be_visible()
    learned = page.locator("dl.facts div").filter(has_text="learned")
    at = server.get(f"/models/{model}").json()
    assert at["seq"] == 601  # the refit is a record, too
    learn(server, model, samples(100, seed=2))
    expect(learned).to_contain_text("700")
    page.once("dialog", lambda dialog: dialog.accept())
    back.click()
    expect(learned).to_contain_text("600")
    trace = page.get_by_role("list", name="Rollbacks")
    expect(trace).to_contain_text("Rolled back from 700 to 600 rows")
    now = server.get(f"/models/{model}").json()
    assert now["samples"] == at["samples"] and now["seq"] > at["seq"]

    page.get_by_role("link", name="Models").click()
    listed = page.get_by_role("listitem").filter(has_text=model)
    expect(listed.get_by_role("img")).to_be_visible()
    expect(listed).to_contain_text("600")
    screenshot(page, "models")


@ON_A_DESKTOP
def test_the_keyboard_is_enough(page: Page, server: httpx.Client):
    model = named(page, "keys")
    server.put(f"/models/{model}", json={}).raise_for_status()
    learn(server, model, samples(20))
    page.goto("/")
    expect(page.get_by_role("link", name=model)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == model:
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=model)).to_be_visible()
    expect(card(page, "Members")).to_contain_text("share")
    box = page.get_by_label("Features, as JSON")
    box.focus()
    box.fill("{")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(card(page, "Try a prediction")).to_contain_text("JSON")


def test_columns_that_moved_most_come_first(page: Page, server: httpx.Client, screenshot):
    model = named(page, "profile")
    types = {"site": "category", "note": "text", "at": "time", "member": "boolean"}
    spec = {"columns": {"types": types}, "algorithm": "sgd"}
    server.put(f"/models/{model}", json=spec).raise_for_status()
    page.goto(f"/#/models/{model}")
    columns = card(page, "Columns")
    expect(columns).to_contain_text("No rows yet")
    random = np.random.default_rng(0)

    def send(n: int, moved: bool) -> None:
        rows = [
            {
                "price": random.normal(14.0 if moved else 10.0, 2.0),
                "site": str(random.choice(["<b>news", "shop", "blog"])),
                "note": "free money",
                "at": "2024-05-06T09:30:00Z",
                "member": bool(random.random() < 0.5),
                **{f"sensor{k}": random.normal() for k in range(12)},
                "y": int(random.random() < 0.5),
            }
            for _ in range(n)
        ]
        rows[0]["note"] = ["not", "a", "text"]
        server.post(f"/models/{model}/learn", json=rows).raise_for_status()

    send(4_000, moved=False)
    send(1_000, moved=True)
    rows = columns.get_by_role("row")
    expect(rows).to_have_count(18)
    first = rows.nth(1).get_by_role("cell")
    found = server.get(f"/models/{model}/columns").json()["columns"]
    expect(first.nth(0)).to_have_text("price")
    expect(first.nth(6)).to_have_text(re.compile(r"^1\d\.\d+ ± [23]\.\d+$"))
    expect(first.nth(2)).to_have_text(f"{found[0]['psi']:.3f}")
    expect(first.nth(1)).to_have_text("large")
    note = rows.filter(has=page.get_by_role("cell", name="note", exact=True)).get_by_role("cell")
    expect(note.nth(6)).to_have_text("2 ± 0 words")
    expect(note.nth(8)).to_have_text("2")
    site = rows.filter(has=page.get_by_role("cell", name="site", exact=True)).get_by_role("cell")
    expect(site.nth(6)).to_contain_text("<b>news 3")
    expect(site.nth(1)).to_have_text("none")
    screenshot(page, "columns")

    old = named(page, "older")
    server.put(f"/models/{old}", json={"spec_version": 3}).raise_for_status()
    page.goto(f"/#/models/{old}")
    expect(card(page, "Largest weights")).to_be_visible()
    expect(card(page, "Columns")).to_be_hidden()


def test_curves_of_splines_are_drawn_the_most_important_first(
    page: Page, server: httpx.Client, screenshot
):
    model = named(page, "curves")
    spec = {"members": [{"algorithm": "splines"}, {"kind": "diagonal_newton"}]}
    server.put(f"/models/{model}", json=spec).raise_for_status()
    page.goto(f"/#/models/{model}")
    curves = card(page, "How each column matters")
    expect(curves).to_contain_text("No curve yet")
    random = np.random.default_rng(0)
    x = random.standard_normal((600, 14))
    y = (np.sin(3.0 * x[:, 4]) > 0).astype(int)
    names = [f"<b>{k}" for k in range(14)]
    rows = [dict(zip(names, row, strict=True)) for row in x.tolist()]
    learn(server, model, [{"x": row, "y": int(label)} for row, label in zip(rows, y, strict=True)])
    drawn = curves.get_by_role("img")
    expect(drawn).to_have_count(12)
    found = server.get(f"/models/{model}/curves").json()["curves"]
    assert found[0]["name"] == "<b>4"
    expect(drawn.first).to_have_attribute("aria-label", re.compile("^<b>4: adds -?[0-9.]+ to "))
    points = drawn.first.locator("polyline").get_attribute("points")
    assert points is not None and len(points.split()) == len(found[0]["x"])
    page.get_by_role("button", name="Show all 14").click()
    expect(drawn).to_have_count(14)
    screenshot(page, "curves")
    page.get_by_role("button", name="Show the first 12").click()
    expect(drawn).to_have_count(12)


@ON_A_DESKTOP
def test_a_model_without_explanations_says_why(
    page: Page, server: httpx.Client, complaints: list[str]
):
    model = named(page, "nearest")
    server.put(f"/models/{model}", json={"algorithm": "neighbours"}).raise_for_status()
    learn(server, model, samples(60))
    page.goto(f"/#/models/{model}")
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    with page.expect_response(re.compile("predict$")):
        page.get_by_label("Features, as JSON").fill('{"heat": 1.5}')
        page.get_by_role("button", name="Predict").click()
    tried = card(page, "Try a prediction")
    expect(tried).to_contain_text("it compares whole rows")
    expect(tried).to_contain_text("score")
    assert len(complaints) == 1 and "409" in complaints.pop()


@ON_A_DESKTOP
def test_names_in_the_data_are_text(page: Page, server: httpx.Client):
    model = named(page, "markup")
    server.put(f"/models/{model}", json={"loss": "hinge", "features": "hashed"}).raise_for_status()
    name = "<img src=x onerror=alert(1)>"
    learn(server, model, [{"x": {name: 1.0}, "y": 1}, {"x": {name: 2.0}, "y": 1}])
    page.goto(f"/#/models/{model}")
    weights = card(page, "Largest weights")
    expect(weights).to_contain_text(name)
    # The prediction form offers features that the model has learned.
    box = page.get_by_label("Features, as JSON")
    expect(box).to_have_value('{ "<img src": "x onerror=alert(1)>" }')
    page.get_by_role("button", name="Predict").click()
    expect(card(page, "Try a prediction")).to_contain_text("x onerror=alert(1)>")
    assert page.locator("main img").count() == 0


def test_a_sparse_model_shows_how_its_features_change(page: Page, server: httpx.Client, screenshot):
    model = named(page, "sparse")
    spec = {"algorithm": "rda", "regularizer": {"kind": "l1", "lambda": 0.05}, "features": "hashed"}
    server.put(f"/models/{model}", json=spec).raise_for_status()
    page.goto(f"/#/models/{model}")
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    changes = card(page, "Support changes")
    expect(changes).to_be_visible()
    got = r"Now: features in use {}, changes per 1,000 rows {}\."
    expect(changes).to_contain_text(re.compile(got.format(0, 0)))
    learn(server, model, samples(200))
    expect(changes).to_contain_text(re.compile(got.format("[1-3]", r"[1-9]\S*")))
    before = drawing(changes)
    learn(server, model, samples(400, seed=1, flip=True))
    found = server.get(f"/models/{model}/support").json()
    expect(changes).to_contain_text(f"features in use {len(found['features'])}, changes per 1,000")
    expect(changes).to_contain_text(f" {found['changes_per_1000']:.4g}.")
    wait_until_redrawn(changes, before)
    screenshot(page, "sparse")


@ON_A_PHONE
def test_numbers_and_classes_have_pages_too(page: Page, server: httpx.Client, screenshot):
    price, kind = named(page, "price"), named(page, "kind")
    server.put(f"/models/{price}", json={"task": "regression"}).raise_for_status()
    server.put(f"/models/{kind}", json={"task": "multiclass", "algorithm": "sgd",
                                        "features": "hashed"}).raise_for_status()  # fmt: skip
    rows = samples(200)
    learn(server, price, [row | {"y": row["x"]["heat"] * 3} for row in rows])
    learn(server, kind, [row | {"y": ["a", "b", "c"][n % 3]} for n, row in enumerate(rows)])
    page.goto(f"/#/models/{price}")
    expect(card(page, "Progressive absolute error")).to_contain_text("Now:")
    page.goto(f"/#/models/{kind}")
    expect(card(page, "Largest weights")).to_contain_text("class")
    box = page.get_by_label("Features, as JSON")
    box.fill(json.dumps(rows[0]["x"]))
    page.get_by_role("button", name="Predict").click()
    got = server.post(f"/models/{kind}/predict", json={"x": rows[0]["x"]}).json()
    expect(card(page, "Try a prediction")).to_contain_text(str(got["label"]))
    screenshot(page, "classes")


@ON_A_DESKTOP
def test_a_paused_model_says_so_and_learns_on(page: Page, server: httpx.Client, screenshot):
    model = named(page, "guarded")
    guard = {"mode": "pause", "every": 20, "after": 100, "deviations": 1}
    spec = {"algorithm": "dual_ascent", "features": "hashed", "guard": guard}
    server.put(f"/models/{model}", json=spec).raise_for_status()
    learn(server, model, samples(400))
    page.goto(f"/#/models/{model}")
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    notice = page.get_by_role("alert").filter(has_text="Learning is paused")
    expect(notice).to_be_hidden()
    learn(server, model, samples(200, flip=True))
    expect(notice).to_contain_text("records are in quarantine")
    expect(card(page, "Drift")).to_contain_text("guard (loss)")
    screenshot(page, "paused")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Drop the rows").click()
    expect(notice).to_be_hidden()
    assert server.get(f"/models/{model}").json()["paused"] is None


@ON_A_DESKTOP
def test_a_model_that_is_deleted_or_unknown_says_so(
    page: Page, server: httpx.Client, complaints: list[str]
):
    model = named(page, "short")
    server.put(f"/models/{model}", json={}).raise_for_status()
    page.goto(f"/#/models/{model}")
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    server.delete(f"/models/{model}").raise_for_status()
    expect(page.get_by_role("status").filter(has_text="deleted")).to_be_visible()
    page.goto("about:blank")
    # Requests that the deletion overtook answer 404 or 409.
    complaints[:] = [text for text in complaints if "Failed to load resource" not in text]


def test_the_api_is_described_without_the_internet(page: Page, screenshot):
    page.goto("/docs")
    expect(page.get_by_text("/models/{model_id}/learn")).to_be_visible()
    is_dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    expect(page.locator("html")).to_have_class("dark-mode" if is_dark else "")
    expect(page.get_by_role("link", name="Models", exact=True)).to_be_visible()
    screenshot(page, "docs")


@ON_A_DESKTOP
def test_a_new_model_shows_no_numbers_that_it_does_not_have(page, server, screenshot):
    model = named(page, "new")
    server.put(f"/models/{model}", json={}).raise_for_status()
    page.goto(f"/#/models/{model}")
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    error = card(page, "Progressive error rate")
    expect(error).to_contain_text("No data yet.")
    expect(page.locator("main")).not_to_contain_text("NaN")
    learn(server, model, samples(40))
    expect(error).to_contain_text(re.compile(r"Now: last rows \d"))
    expect(page.locator("main")).not_to_contain_text("NaN")
    # The cursor marks the single point, which is at the end of the axis and not in its middle.
    for title in ("Progressive error rate", "Progressive loss", "Speed"):
        over = card(page, title).locator(".u-over")
        over.hover()
        box, point = over.bounding_box(), over.locator(".u-cursor-pt").last.bounding_box()
        assert point["x"] - box["x"] > 0.9 * box["width"], title
    screenshot(page, "new")


@ON_A_DESKTOP
def test_a_refused_prediction_is_an_error_with_its_reason(page, server, complaints):
    model = named(page, "refusing")
    server.put(f"/models/{model}", json={}).raise_for_status()
    learn(server, model, samples(40))
    page.goto(f"/#/models/{model}")
    tried = card(page, "Try a prediction")
    for x, field in (('{"heat": 1e300, "load": 1}', "heat"), ('{"heat": 1, "load": [2]}', "load")):
        page.get_by_label("Features, as JSON").fill(x)
        page.get_by_role("button", name="Predict").click()
        expect(tried.locator("p.error")).to_contain_text(f"/x/{field}")
        expect(tried.get_by_role("table")).to_have_count(0)
        expect(tried).not_to_contain_text("null")
        assert len(complaints) == 1 and "422" in complaints.pop()


def test_a_wrong_key_is_said_to_be_wrong(browser, tmp_path):
    key, line = new_key("reader", "admin")
    flags = ["--keys", line.line()]
    with ServerProcess(f"sqlite:///{tmp_path / 'keys.db'}", flags) as process:
        context = browser.new_context(base_url=process.url)
        page = context.new_page()
        page.goto("/")
        dialog, refused = (
            page.get_by_role("dialog"),
            page.get_by_text("The server refused this key"),
        )
        expect(dialog).to_be_visible()
        expect(refused).to_be_hidden()
        page.get_by_label("API key", exact=True).fill("wrong")
        page.get_by_role("button", name="Continue").click()
        expect(refused).to_be_visible()
        page.get_by_label("API key", exact=True).fill(key)
        page.get_by_role("button", name="Continue").click()
        expect(dialog).to_be_hidden()
        expect(page.get_by_text("There are no models yet.")).to_be_visible()
        context.close()


VISITS = "visit_no,at,zip,price,subject,bought\n" + "".join(
    f"{n},2024-05-{1 + n % 28:02}T{n % 24:02}:00,0{2134 + n % 3},{'NA' if n % 7 == 0 else n / 2},"
    f"free delivery for order {n},{'yes' if n % 3 == 0 else 'no'}\n"
    for n in range(40)
)


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

"""The page of one model in a real browser: stream, see it move, look into it, go back."""

import re

import httpx
import numpy as np
from playwright.sync_api import Page, expect

from tests.browser.pages import (
    ON_A_DESKTOP,
    ON_A_PHONE,
    card,
    create,
    drawing,
    learn,
    named,
    number,
    open_tab,
    pill,
    samples,
    wait_for_events,
    wait_until_redrawn,
)


def test_the_error_moves_and_drift_is_marked(page: Page, server: httpx.Client, screenshot):
    model = named(page, "pumps")
    create(server, model, algorithm="dual_ascent", loss="hinge", features="hashed")
    page.goto(f"/#/models/{model}")
    wait_for_events(page)
    state = page.locator(".model-head").get_by_role("status")
    expect(state).to_have_text("waiting for rows")  # a rate is the difference of two readings
    learn(server, model, samples(300))
    error = card(page, "Error rate")
    expect(error).to_contain_text(re.compile(r"Now: last 25 rows \d"))
    expect(state).to_have_text(re.compile("^learning [1-9]"))
    now = error.locator("p").filter(has_text="Now:")
    before, drawn = now.inner_text(), drawing(error)
    learn(server, model, samples(300, seed=1, flip=True))
    expect(now).not_to_have_text(before)
    wait_until_redrawn(error, drawn)
    metrics = server.get(f"/models/{model}/metrics").json()
    expect(now).to_contain_text(f"since start {100 * metrics['since_start']['error_rate']:.1f} %")

    # The four numbers are those of the API, each with its meaning.
    rolling = metrics["rolling"]
    tile = number(page, "Error rate, last 1,000 rows")
    expect(tile.locator(".value")).to_have_text(f"{100 * rolling['error_rate']:.1f} %")
    baselines = {name: one["error_rate"] for name, one in rolling["baselines"].items()}
    best = min(baselines, key=baselines.__getitem__)
    is_better = rolling["error_rate"] <= baselines[best]
    words = {"most_frequent": "the most frequent label", "last_label": "the previous label"}[best]
    expect(tile).to_contain_text(
        re.compile(f"{'better' if is_better else 'worse'} than the best baseline, always {words}")
    )
    expect(number(page, "Loss, last 1,000 rows")).to_contain_text(f"{rolling['loss']:.4g}"[:5])
    expect(number(page, "Rows learned").locator(".value")).to_have_text("600")
    gap = number(page, "Distance from the optimum")
    expect(gap.locator(".value")).to_have_text(re.compile(r"^≤ \d[\d.]* %$"))
    expect(card(page, "Certificate")).to_contain_text(re.compile(r"gap 0?\.?\d*[1-9]"))
    ranking = card(page, "Ranking")
    expect(ranking).to_contain_text(f"AUC {rolling['auc']:.4g}")

    # A marker of drift can be focused and hovered, and says what happened.
    marker = error.get_by_role("button", name=re.compile("^Drift: the loss rose")).first
    marker.focus()
    tip = error.locator(".tip:visible")
    expect(tip).to_contain_text(re.compile(r"the loss rose.*at \d+ rows, seq \d+"))
    page.get_by_role("tab", name="Overview").focus()
    expect(tip).to_have_count(0)
    marker.hover()
    expect(tip).to_contain_text("the loss rose")
    screenshot(page, "model")

    # The same errors against time.
    drawn = drawing(error)
    error.get_by_role("button", name="Time", exact=True).click()
    wait_until_redrawn(error, drawn)
    expect(error.locator(".u-legend")).to_contain_text("time")
    expect(error.get_by_role("button", name="Time", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(
        error.get_by_role("button", name=re.compile("^Drift: the loss rose")).first
    ).to_be_visible()
    error.get_by_role("button", name="Rows", exact=True).click()
    expect(error.locator(".u-legend")).to_contain_text("rows learned")

    # A part is dragged over; it stays while rows come, and a button ends it.
    over = error.locator(".u-over").bounding_box()
    page.mouse.move(over["x"] + 100, over["y"] + 50)
    page.mouse.down()
    page.mouse.move(over["x"] + 200, over["y"] + 50, steps=3)
    page.mouse.up()
    whole = error.get_by_role("button", name="Reset zoom")
    expect(whole).to_be_visible()
    learn(server, model, samples(30, seed=2))
    expect(number(page, "Rows learned").locator(".value")).to_have_text("630")
    expect(whole).to_be_visible()
    drawn = drawing(error)
    whole.click()
    wait_until_redrawn(error, drawn)
    expect(whole).to_be_hidden()
    drawn = drawing(error)
    learn(server, model, samples(600, seed=3))
    expect(number(page, "Rows learned").locator(".value")).to_have_text("1,230")
    drawn = drawing(error)
    error.get_by_role("button", name="1,000 rows").click()
    wait_until_redrawn(error, drawn)

    open_tab(page, "Drift")
    events = page.get_by_role("region", name="Drift events, newest first")
    timeline = server.get(f"/models/{model}/timeline").json()
    expect(events.get_by_role("row")).to_have_count(1 + len(timeline["events"]))
    expect(events).to_contain_text("the loss rose")
    expect(card(page, "Drift of the input")).to_contain_text("Not known before 2,000 rows.")


def test_the_segment_in_which_the_model_fails_comes_first(
    page: Page, server: httpx.Client, screenshot
):
    model = named(page, "segments")
    columns = {"types": {"country": "category", "returning": "boolean"}}
    create(server, model, algorithm="sgd", columns=columns, segments=["country", "returning"])
    open_model = f"/#/models/{model}/segments"
    page.goto(open_model)
    segments = card(page, "Segments")
    expect(segments).to_contain_text("No rows yet.")
    random = np.random.default_rng(0)
    rows = []
    for n in range(900):
        x, country = random.standard_normal(), "DE DE FR GR".split()[n % 4]
        label = (x > 0) != (country == "GR")
        rows.append({"country": country, "returning": n % 3 == 0, "price": x, "y": int(label)})
    rows += [{"country": f"<b>{n}</b>", "price": 1.0, "y": 1} for n in range(30)]
    server.post(f"/models/{model}/learn", json=rows).raise_for_status()
    page.reload()
    table = segments.get_by_role("region", name="Segments by country, most harmful first")
    view = server.get(f"/models/{model}/metrics?by=country").json()["since_start"]
    expect(table.get_by_role("row")).to_have_count(21)
    first = table.get_by_role("row").nth(1)
    expect(first).to_contain_text("GR")
    expect(first).to_contain_text(f"{100 * view[1]['error_rate']:.1f} %")
    expect(first).to_contain_text(f"{100 * view[1]['mean_label']:.1f} %")
    screenshot(page, "segments")
    segments.get_by_role("button", name="Show 13 more").click()
    expect(table.get_by_role("row")).to_have_count(len(view))
    segments.get_by_role("button", name="Recent rows").click()
    expect(segments).to_contain_text("falls by 1/10,000")
    segments.get_by_role("button", name="returning").click()
    table = segments.get_by_role("region", name="Segments by returning, most harmful first")
    expect(table.get_by_role("row")).to_have_count(3)
    other = named(page, "whole")
    create(server, other, algorithm="sgd", features="hashed")
    page.goto(f"/#/models/{other}")
    expect(page.get_by_role("tab", name="Drift")).to_be_visible()
    expect(page.get_by_role("tab", name="Segments")).to_have_count(0)


@ON_A_DESKTOP
def test_the_tab_is_in_the_address(page: Page, server: httpx.Client):
    model = named(page, "tabs")
    create(server, model, algorithm="sgd", features="hashed")
    page.goto(f"/#/models/{model}/features")
    expect(page.get_by_role("tab", name="Features")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Members")).to_have_count(0)
    heading = page.get_by_role("heading", name=model).element_handle()
    open_tab(page, "Settings")
    assert page.url.endswith(f"#/models/{model}/settings")
    expect(card(page, "Specification")).to_contain_text('"algorithm": "sgd"')
    page.go_back()
    expect(page.get_by_role("tabpanel", name="Features")).to_be_visible()
    # The page was not made again.
    assert heading.evaluate("one => one.isConnected")


@ON_A_DESKTOP
def test_long_numbers_are_short(page: Page, server: httpx.Client):
    page.goto("/")
    shown = page.evaluate(
        """async () => {
          const { number } = await import("/static/js/format.js");
          return [5e11, 2.5e11, 1.5254e6, 1e-10, 1e100, -2e-5, 1200, 0].map(number);
        }"""
    )
    assert shown == ["5e+11", "2.5e+11", "1.525e+6", "1e-10", "1e+100", "-2e-5", "1,200", "0"]


@ON_A_DESKTOP
def test_a_slow_page_claims_nothing(page: Page, server: httpx.Client):
    model = named(page, "slow")
    create(server, model, algorithm="sgd", features="hashed")
    learn(server, model, samples(20))
    page.route("**/timeline", lambda _: None)
    page.goto(f"/#/models/{model}")
    expect(page.get_by_role("tablist")).to_be_visible()
    expect(card(page, "Send the first rows")).to_be_hidden()
    # Rows of other classes, which can be predicted as one another, are not called right.
    cells = page.evaluate(
        """async () => {
          const { confusionTable } = await import("/static/js/confusion.js");
          const found = confusionTable({ classes: ["a"], counts: [[3, 1], [0, 5]] });
          return [...found.querySelectorAll("td.number[class*=d]")].map((one) => one.classList[1]);
        }"""
    )
    assert cells == ["hit", "miss", "d8"]


def test_members_have_shares(page: Page, server: httpx.Client, screenshot):
    model = named(page, "members")
    kinds = ["diagonal_newton", "splines", "boosted"]
    members = [{"kind": kinds[0]}, *({"algorithm": one} for one in kinds[1:])]
    create(server, model, members=members)
    learn(server, model, samples(100))
    page.goto(f"/#/models/{model}/members")
    wait_for_events(page)
    shown = card(page, "Shares in the prediction")
    picture, areas = shown.get_by_role("img"), shown.locator("polygon")
    # One moment is no course.
    expect(shown).to_contain_text("The server draws their course as rows come.")
    expect(areas).to_have_count(0)
    for k in range(2):
        learn(server, model, samples(200, seed=k + 1))
        expect(shown).to_contain_text(f"From 100 to {300 + 200 * k} rows")
    result = server.get(f"/models/{model}/members").json()["members"]
    best = max(result, key=lambda one: one["weight"])
    expect(picture).to_have_attribute("aria-label", re.compile(f"the largest is {best['name']}"))
    expect(areas).to_have_count(len(result))
    # Three moments on both edges of each area. The server has them, not the page.
    collected = areas.first.get_attribute("points")
    assert len(collected.split()) == 6
    page.reload()
    expect(areas.first).to_have_attribute("points", collected)
    expect(shown.locator(".legend li")).to_have_count(len(result))
    table = page.get_by_role("region", name="Members and their shares")
    shares = [f"{100 * one['weight']:.{2 if one['weight'] < 0.1 else 1}f} %" for one in result]
    for one, share in zip(result, shares, strict=True):
        expect(table.get_by_role("row").filter(has_text=one["name"]).first).to_contain_text(share)
    screenshot(page, "members")
    server.post(f"/models/{model}/members/{best['name']}/promote").raise_for_status()
    expect(shown).to_contain_text(f"{best['name']} is promoted and predicts alone.")
    open_tab(page, "Overview")
    promoted = re.compile(f"^Member {best['name']} promoted.*, at 500 rows, seq 501")
    expect(card(page, "Error rate").get_by_role("button", name=promoted)).to_be_visible()
    # A new model of this name has its own moments.
    page.goto("about:blank")
    server.delete(f"/models/{model}").raise_for_status()
    create(server, model, members=members)
    learn(server, model, samples(600))
    page.goto(f"/#/models/{model}/members")
    expect(shown).to_contain_text("The server draws their course as rows come.")


@ON_A_DESKTOP
def test_a_rollback_asks_first_and_leaves_a_marker(page: Page, server: httpx.Client, screenshot):
    model = named(page, "back")
    create(server, model, algorithm="dual_ascent", features="hashed")
    learn(server, model, samples(600))
    page.goto(f"/#/models/{model}/versions")
    wait_for_events(page)
    page.get_by_label("Name").fill("good")
    page.get_by_role("button", name="Save version").click()
    versions = page.get_by_role("region", name="Versions, newest first")
    expect(versions.get_by_role("row").nth(1)).to_contain_text(
        re.compile(r"good\s*600\s*600\s*just now")
    )
    learn(server, model, samples(100, seed=2))
    rows = number(page, "Rows learned").locator(".value")
    expect(rows).to_have_text("700")
    back = page.get_by_role("button", name="Roll back to good")
    back.click()
    dialog = page.get_by_role("dialog", name="Roll back to good?")
    expect(dialog).to_contain_text("at 600 rows learned")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    screenshot(page, "rollback")
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    assert server.get(f"/models/{model}").json()["samples"] == 700
    back.click()
    dialog.get_by_role("button", name="Roll back").click()
    expect(rows).to_have_text("600")
    changes = page.get_by_role("region", name="Changes, newest first")
    expect(changes.get_by_role("row").nth(1)).to_contain_text(
        "Rolled back from 700 to 600 rows, version good"
    )
    open_tab(page, "Overview")
    text = re.compile("^Rolled back from 700 to 600 rows, version good, at 600 rows, seq 701")
    marker = card(page, "Error rate").get_by_role("button", name=text)
    expect(marker).to_be_visible()
    # The marker is in the store, not in the page.
    page.reload()
    expect(marker).to_be_visible()
    # Rows after the rollback are counted from the restored ones.
    learn(server, model, samples(50, seed=3))
    expect(rows).to_have_text("650")
    later = "later" + 100 * "r"
    server.post(f"/models/{model}/versions", json={"name": later}).raise_for_status()
    page.reload()
    saved = re.compile(f"^Version {later} saved, at 650 rows, seq 751")
    expect(card(page, "Error rate").get_by_role("button", name=saved)).to_be_visible()
    # A version and the present state, side by side.
    page.goto(f"/#/models/{model}/versions")
    versions.get_by_role("row").filter(has_text="good").get_by_role("link").click()
    figures = page.get_by_role("region", name="Figures of both")
    expect(figures.get_by_role("row").nth(1)).to_have_text(re.compile(r"rows measured\s*600\s*650"))
    of_version = server.get(f"/models/{model}/versions/good/metrics").json()["rolling"]
    rate = figures.get_by_role("row").nth(2)
    expect(rate).to_contain_text(
        f"{100 * of_version['error_rate']:.{2 if of_version['error_rate'] < 0.1 else 1}f} %"
    )
    expect(page.locator(".u-legend")).to_contain_text(f"{model}@good")
    expect(page.locator("main")).to_contain_text("Both have the same specification.")
    expect(page.locator("main")).to_contain_text("neither is called better")
    expect(figures.locator(".good")).to_have_count(0)
    page.get_by_label("State").first.select_option(f"version {later}")
    expect(page).to_have_url(re.compile(f"%40{later}/"))
    expect(figures.get_by_role("row").nth(1)).to_have_text(re.compile(r"650\s*650"))
    screenshot(page, "compare")


@ON_A_DESKTOP
def test_refits_and_the_optimum(page: Page, server: httpx.Client):
    model = named(page, "refits")
    create(server, model, algorithm="dual_ascent", features="hashed")
    learn(server, model, samples(200))
    page.goto(f"/#/models/{model}/settings")
    refits = card(page, "Refits")
    refits.get_by_role("button", name="Compare with the optimum").click()
    # The solver thread has the lowest priority: on busy cores it gets a hundredth of one.
    expect(refits).to_contain_text(re.compile(r"regret over 200 rows\s*-?\d"), timeout=150_000)
    refits.get_by_role("button", name="Refit now").click()
    expect(refits.get_by_role("row").nth(1)).to_contain_text("done")


def test_columns_that_moved_most_come_first(page: Page, server: httpx.Client, screenshot):
    model = named(page, "profile")
    types = {"site": "category", "note": "text", "at": "time", "member": "boolean"}
    create(server, model, columns={"types": types}, algorithm="sgd")
    page.goto(f"/#/models/{model}/features")
    wait_for_events(page)
    columns = card(page, "Columns")
    expect(columns).to_contain_text("No rows yet")
    random = np.random.default_rng(0)

    def send(n: int, moved: bool) -> None:
        rows = [
            {
                "price": round(random.normal(14.0 if moved else 10.0, 2.0), 2),
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
    result = server.get(f"/models/{model}/columns").json()["columns"]
    expect(first.nth(0)).to_have_text("price")
    expect(first.nth(6)).to_have_text(re.compile(r"^1\d\.\d+ ± [23]\.\d+$"))
    expect(first.nth(2)).to_have_text(f"{result[0]['psi']:.3f}")
    expect(first.nth(1)).to_have_text("large")
    note = rows.filter(has=page.get_by_role("cell", name="note", exact=True)).get_by_role("cell")
    expect(note.nth(6)).to_have_text("2 ± 0 words")
    expect(note.nth(8)).to_have_text("2")
    site = rows.filter(has=page.get_by_role("cell", name="site", exact=True)).get_by_role("cell")
    expect(site.nth(6)).to_contain_text("<b>news 3")
    # `false` is no missing value.
    member = rows.filter(has=page.get_by_role("cell", name="member", exact=True))
    profile = next(one for one in result if one["name"] == "member")
    true = profile["count"] / (profile["count"] + profile["missing"])
    expect(member.get_by_role("cell").nth(6)).to_have_text(f"true {100 * true:.1f} %")
    expect(site.nth(1)).to_have_text("none")
    screenshot(page, "columns")
    expect(pill(page, "input drifting")).to_be_visible()
    page.get_by_text("Column price has moved").get_by_role("link").click()
    expect(page.get_by_role("tabpanel", name="Drift")).to_be_visible()
    pictures = card(page, "Before and after").locator("figure")
    # The bound of two ranges, which few rows have, is part of the range above it.
    *_, bound, last = result[0]["bins"]
    assert bound["low"] == bound["high"] == last["low"]
    lines = pictures.first.locator("li")
    expect(lines.filter(has_text=re.compile(rf"^{bound['low']:.4g}\s*:"))).to_have_count(0)
    before, recent = (100 * (bound[name] + last[name]) for name in ("before", "recent"))
    expect(lines.last).to_contain_text(f"{before:.1f} → {recent:.1f} %")
    moved = page.get_by_role("region", name="Columns that moved, largest drift first")
    expect(moved.get_by_role("row").nth(1)).to_contain_text(
        re.compile(r"price\s*large\s*0\.\d|price\s*large\s*\d")
    )


def test_curves_of_splines_are_drawn_the_most_important_first(
    page: Page, server: httpx.Client, screenshot
):
    model = named(page, "curves")
    create(server, model, members=[{"algorithm": "splines"}, {"kind": "diagonal_newton"}])
    page.goto(f"/#/models/{model}/features")
    wait_for_events(page)
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
    result = server.get(f"/models/{model}/curves").json()["curves"]
    assert result[0]["name"] == "<b>4"
    expect(drawn.first).to_have_attribute("aria-label", re.compile("^<b>4: adds -?[0-9.]+ to "))
    points = drawn.first.locator("polyline").get_attribute("points")
    assert points is not None and len(points.split()) == len(result[0]["x"])
    page.get_by_role("button", name="Show all 14").click()
    expect(drawn).to_have_count(14)
    screenshot(page, "curves")
    page.get_by_role("button", name="Show the first 12").click()
    expect(drawn).to_have_count(12)


def test_a_sparse_model_shows_how_its_features_change(page: Page, server: httpx.Client, screenshot):
    model = named(page, "sparse")
    regularizer = {"kind": "l1", "lambda": 0.05}
    create(server, model, algorithm="rda", regularizer=regularizer, features="hashed")
    page.goto(f"/#/models/{model}/features")
    wait_for_events(page)
    changes = card(page, "Support changes")
    expect(changes).to_be_visible()
    got = r"Now: features in use {}, changes per 1,000 rows {}\."
    expect(changes).to_contain_text(re.compile(got.format(0, 0)))
    learn(server, model, samples(200))
    expect(changes).to_contain_text(re.compile(got.format("[1-3]", r"[1-9]\S*")))
    before = drawing(changes)
    learn(server, model, samples(400, seed=1, flip=True))
    result = server.get(f"/models/{model}/support").json()
    expect(changes).to_contain_text(f"features in use {len(result['features'])}, changes per 1,000")
    expect(changes).to_contain_text(f" {result['changes_per_1000']:.4g}.")
    wait_until_redrawn(changes, before)
    screenshot(page, "sparse")


@ON_A_PHONE
def test_numbers_and_classes_have_pages_too(page: Page, server: httpx.Client, screenshot):
    price, kind = named(page, "price"), named(page, "kind")
    create(server, price, task="regression")
    members = [{"kind": "diagonal_newton"}, {"algorithm": "splines"}]
    create(server, kind, task="multiclass", members=members)
    rows = samples(200)
    learn(server, price, [row | {"y": row["x"]["heat"] * 3} for row in rows])
    learn(server, kind, [row | {"y": ["a", "b", "c"][n % 3]} for n, row in enumerate(rows)])
    page.goto(f"/#/models/{price}")
    expect(card(page, "Mean absolute error")).to_contain_text("Now:")
    mae = server.get(f"/models/{price}/metrics").json()["rolling"]["mae"]
    tile = number(page, "Mean absolute error, last 1,000 rows")
    expect(tile.locator(".value")).to_have_text(f"{mae:.4g}")
    page.goto(f"/#/models/{kind}/features")
    expect(card(page, "Largest weights")).to_contain_text("class")
    # Curves are those of one class, under the names of columns.
    curves = card(page, "How each column matters")
    shown = server.get(f"/models/{kind}/curves?label=%22c%22").json()["curves"]
    curves.get_by_label("Class").select_option("c")
    expect(curves.locator("figure strong").first).to_have_text(shown[0]["name"])
    expect(curves).to_contain_text(f"range {shown[0]['range']:.4g}"[:10])
    screenshot(page, "classes")
    open_tab(page, "Members")
    expect(card(page, "Shares in the prediction")).to_contain_text("means over the classes")
    table = page.get_by_role("region", name="Members and their shares")
    expect(table.get_by_role("row")).to_have_count(3)
    open_tab(page, "Overview")
    counts = server.get(f"/models/{kind}/confusion").json()
    row = (
        card(page, "Confusion")
        .get_by_role("row")
        .filter(has=page.get_by_role("rowheader", name=str(counts["classes"][0]), exact=True))
    )
    cells = [f"{one}" for one in counts["counts"][0]]
    expect(row.get_by_role("cell")).to_contain_text(cells[:3])


@ON_A_DESKTOP
def test_intervals_show_their_coverage(page: Page, server: httpx.Client, screenshot):
    price, kind = named(page, "interval"), named(page, "sets")
    create(server, price, task="regression", intervals={"coverage": [0.8, 0.95]})
    create(server, kind, task="multiclass", algorithm="sgd", features="hashed", loss="logistic",
           intervals={"coverage": 0.9})  # fmt: skip
    rows = samples(400)
    page.goto(f"/#/models/{price}")
    for end in range(100, 401, 100):
        some = rows[end - 100 : end]
        learn(server, price, [row | {"y": row["x"]["heat"] * 3} for row in some])
        learn(server, kind, [row | {"y": ["a", "b", "c"][n % 3]} for n, row in enumerate(some)])
    one = card(page, "Intervals")
    table = one.get_by_role("region", name="Intervals by level")
    expect(table.get_by_role("row")).to_have_count(3)
    figures = server.get(f"/models/{price}/metrics").json()["intervals"]
    expect(table.get_by_role("row").nth(1)).to_contain_text("80 %")
    expect(table.get_by_role("row").nth(1)).to_contain_text(f"{100 * figures[0]['coverage']:.1f} %")
    expect(one).to_contain_text("within 95 %")
    last = card(page, "Last predictions")
    expect(last.locator(".u-legend")).to_contain_text("95 % from")
    found = server.get(f"/models/{price}/intervals").json()
    expect(last.locator(".u-legend")).to_contain_text(f"label{found['labels'][-1]:.4g}")
    whole = drawing(last)
    last.get_by_role("button", name="200 rows").click()
    wait_until_redrawn(last, whole)
    predict = card(page, "Try a prediction")
    predict.get_by_role("button", name="Predict").click()
    expect(predict).to_contain_text("80 % interval: ")
    screenshot(page, "intervals")
    page.goto(f"/#/models/{kind}")
    expect(card(page, "Sets of labels")).to_contain_text("within 90 %")
    predict.get_by_role("button", name="Predict").click()
    expect(predict).to_contain_text("90 % set: ")
    screenshot(page, "sets")


@ON_A_DESKTOP
def test_a_paused_model_says_so_and_learns_on(page: Page, server: httpx.Client, screenshot):
    model = named(page, "guarded")
    guard = {"mode": "pause", "every": 20, "after": 100, "deviations": 1}
    create(server, model, algorithm="dual_ascent", features="hashed", guard=guard)
    learn(server, model, samples(400))
    page.goto(f"/#/models/{model}")
    wait_for_events(page)
    notice = page.get_by_role("alert").filter(has_text="Learning is paused")
    expect(notice).to_be_hidden()
    learn(server, model, samples(200, flip=True))
    expect(notice).to_contain_text("in quarantine: ")
    expect(pill(page, "learning paused")).to_be_visible()
    marker = card(page, "Error rate").get_by_role("button", name=re.compile("^Guard: the loss was"))
    expect(marker.first).to_be_visible()
    screenshot(page, "paused")
    page.get_by_role("button", name="Drop the rows").click()
    page.get_by_role("dialog").get_by_role("button", name="Drop the rows").click()
    expect(notice).to_be_hidden()
    expect(pill(page, "learning paused")).to_have_count(0)
    assert server.get(f"/models/{model}").json()["paused"] is None


@ON_A_DESKTOP
def test_a_deleted_model_says_so(page: Page, server: httpx.Client, complaints: list[str]):
    model = named(page, "short")
    create(server, model)
    page.goto(f"/#/models/{model}")
    wait_for_events(page)
    server.delete(f"/models/{model}").raise_for_status()
    expect(pill(page, "deleted")).to_be_visible()
    page.goto("about:blank")
    # Requests that the deletion overtook answer 404 or 409.
    complaints[:] = [text for text in complaints if "Failed to load resource" not in text]


@ON_A_DESKTOP
def test_a_new_model_shows_no_numbers_that_it_does_not_have(page, server, screenshot):
    model = named(page, "new")
    create(server, model)
    page.goto(f"/#/models/{model}")
    expect(pill(page, "waiting for rows")).to_be_visible()
    error = card(page, "Error rate")
    expect(error).to_be_hidden()
    expect(page.locator("main")).not_to_contain_text("NaN")
    learn(server, model, samples(40))
    expect(error).to_contain_text(re.compile(r"Now: last 25 rows \d"))
    expect(page.locator("main")).not_to_contain_text("NaN")
    # 40 rows came at once, and the curve has each of them.
    expect(error.locator(".u-over")).to_be_visible()
    # What is known of one moment only is text.
    expect(card(page, "Ranking").locator(".u-over")).to_be_hidden()
    auc = server.get(f"/models/{model}/metrics").json()["rolling"]["auc"]
    expect(card(page, "Ranking").get_by_text(f"Now: AUC {auc:.4g}")).to_be_visible()
    screenshot(page, "new")

"""The page of all models, the form for a new one, and the pages around them, in a real browser."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.http.api_keys import new_key
from tests.browser.conftest import serving
from tests.browser.pages import ON_A_DESKTOP, card, create, learn, number, open_tab, samples


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server without the models of other modules."""
    with serving(tmp_path_factory.mktemp("overview")) as client:
        yield client


@pytest.fixture(scope="module")
def three(server: httpx.Client) -> httpx.Client:
    """Three models: one that learned well, one worse than its baseline, one without rows."""
    create(server, "a-good", algorithm="sgd", features="hashed")
    learn(server, "a-good", samples(400))
    create(server, "b-worse", algorithm="sgd", features="hashed")
    # Labels are all 1 but one in ten, at random: the most frequent label is hard to beat.
    rows = samples(400)
    for n, row in enumerate(rows):
        row["y"] = 1 if n % 10 else 0
        row["x"] = {"noise": row["x"]["heat"] * 100}
    learn(server, "b-worse", rows)
    create(server, "c-empty", task="regression")
    return server


def listed(page: Page) -> list[str]:
    return page.locator("main h2 a, main td a").all_inner_texts()


@ON_A_DESKTOP
def test_the_strip_says_how_the_server_is(page: Page, three: httpx.Client):
    page.goto("/")
    expect(number(page, "Models")).to_contain_text(re.compile(r"\d+\s*\d+ in memory"))
    expect(number(page, "Memory of models")).to_contain_text(re.compile(r"[kM]B\s*of 1?[\d.]+ GB"))
    ready = three.get("/readyz?verbose").json()
    expect(number(page, "Store")).to_contain_text(f"durability {ready['durability']}")
    expect(number(page, "Store")).to_contain_text("SQLite")
    learn(three, "a-good", samples(300, seed=5))
    rows = number(page, "Rows per second").locator(".value")
    expect(rows).to_have_text(re.compile(r"^[1-9]"))
    answers = number(page, "Answer time, 99th percentile").locator(".value")
    expect(answers).to_have_text(re.compile(r"^≤ [\d.,]+ m?s$"))


def test_models_are_searched_and_sorted_by_what_matters(
    page: Page, three: httpx.Client, screenshot
):
    page.goto("/")
    first = page.get_by_role("listitem").filter(has_text="a-good")
    expect(first.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("error rate .*better than")
    )
    # The model that needs attention is first, and says why. Its error is that of its own page.
    expect(page.locator("main h2 a").first).to_have_text("b-worse")
    worse = page.get_by_role("listitem").filter(has_text="b-worse")
    rate = three.get("/models/b-worse/metrics").json()["rolling"]["error_rate"]
    error = f"{100 * rate:.1f} %"
    words = (
        f"Errs in {error} of the last 400 rows, worse than always predicting the most frequent "
        r"label \(10\.\d %\)\. See what has changed"
    )
    expect(worse).to_contain_text(re.compile(words.replace(" ", r"\s")))
    expect(worse.locator(".card-error strong")).to_have_text(error)
    expect(worse.locator(".dot.warn")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="c-empty")).to_contain_text(
        "waiting for rows"
    )
    screenshot(page, "models")
    page.get_by_label("Sort by").select_option("name")
    expect(page.locator("main h2 a").first).to_have_text("a-good")
    page.get_by_label("Sort by").select_option("error")
    expect(page.locator("main h2 a").first).to_have_text("b-worse")
    # The model that learned last is first.
    learn(three, "a-good", samples(20, seed=2))
    page.get_by_label("Sort by").select_option("activity")
    expect(page.locator("main h2 a").first).to_have_text("a-good")
    page.get_by_label("Search").fill("REGR")
    assert listed(page) == ["c-empty"]
    expect(page.locator("main")).to_contain_text("1 of 3 models")
    page.get_by_label("Search").fill("zzz")
    expect(page.get_by_role("heading", name="No model matches zzz")).to_be_visible()
    page.get_by_role("button", name="Clear the search").click()
    page.get_by_role("button", name="List").click()
    row = page.get_by_role("row").filter(has_text="b-worse")
    expect(row).to_contain_text(error)
    expect(row).to_contain_text(re.compile(r"(s|min) ago|just now|learning"))
    screenshot(page, "list")


def test_many_models_are_a_list(browser, tmp_path):
    with (
        ServerProcess(f"sqlite:///{tmp_path / 'many.db'}") as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
        browser.new_context(base_url=process.url) as context,
    ):
        page = context.new_page()
        page.goto("/")
        expect(page.get_by_text("There are no models yet.")).to_be_visible()
        expect(page.get_by_role("link", name="Create a model")).to_be_visible()
        for n in range(30):
            create(client, f"m{n:02}", algorithm="sgd", features="hashed")
        rows = page.get_by_role("row")
        expect(rows).to_have_count(31)
        page.get_by_role("link", name="m07").focus()
        learn(client, "m07", samples(20))
        # The list is replaced by a new one, and the focus stays.
        expect(rows.filter(has_text="m07")).to_contain_text("20")
        expect(page.get_by_role("link", name="m07")).to_be_focused()
        page.get_by_role("button", name="Cards").click()
        expect(page.locator("main h2")).to_have_count(24)
        expect(page.locator("main")).to_contain_text("The first 24 are shown")


@ON_A_DESKTOP
def test_the_keyboard_is_enough(page: Page, three: httpx.Client):
    page.goto("/")
    expect(page.get_by_role("link", name="a-good")).to_be_visible()
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "a-good":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="a-good")).to_be_visible()
    page.get_by_role("tab", name="Overview").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Features")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Features")).to_be_visible()
    page.keyboard.press("End")
    expect(page.get_by_role("tab", name="Settings")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Overview")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Overview")).to_be_visible()
    tried = page.get_by_label("Features, as JSON")
    page.get_by_text("As JSON", exact=True).focus()
    page.keyboard.press("Enter")
    tried.focus()
    tried.fill("{")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(card(page, "Try a prediction")).to_contain_text("The features are no JSON")
    expect(tried).to_have_attribute("aria-invalid", "true")
    # In a field a key is text; elsewhere it acts.
    keys = page.get_by_role("dialog", name="Keys")
    tried.press("?")
    expect(tried).to_have_value("{?")
    page.get_by_role("tab", name="Overview").press("?")
    expect(keys).to_be_visible()
    page.keyboard.press("Escape")
    expect(keys).to_have_count(0)
    page.get_by_role("tab", name="Overview").press("/")
    expect(page.get_by_label("Search")).to_be_focused()


@ON_A_DESKTOP
def test_an_unknown_model_and_an_unknown_page_have_pages(page: Page, three, complaints, screenshot):
    page.goto("/#/models/nothing-here")
    expect(page.get_by_role("heading", name="There is no model nothing-here")).to_be_visible()
    expect(page).to_have_title("Unknown model · Dualstream")
    assert len(complaints) == 1 and "404" in complaints.pop()
    screenshot(page, "unknown")
    page.get_by_role("link", name="All models").click()
    expect(page.get_by_role("link", name="a-good")).to_be_visible()
    page.goto("/#/elsewhere")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()


def test_the_key_dialog_says_what_is_wrong(browser, tmp_path):
    reader, line = new_key("reader", "predict")
    admin, second = new_key("chief", "admin")
    flags = ["--keys", f"{line.line()};{second.line()}"]
    with ServerProcess(f"sqlite:///{tmp_path / 'keys.db'}", flags) as process:
        context = browser.new_context(base_url=process.url)
        page = context.new_page()
        page.goto("/")
        dialog, error = page.get_by_role("dialog"), page.locator("#key-error")
        field = page.get_by_label("Key", exact=True)
        proceed = page.get_by_role("button", name="Continue")
        expect(dialog).to_contain_text("This server requires a key.")
        expect(error).to_be_hidden()
        proceed.click()
        expect(error).to_have_text("Enter a key.")
        field.fill("schlüssel")
        proceed.click()
        expect(error).to_contain_text("only ASCII letters")
        field.fill("wrong")
        proceed.click()
        expect(error).to_contain_text("The server refused this key")
        # Cancel is an answer: the page does not ask with each request.
        page.get_by_role("button", name="Cancel").click()
        expect(dialog).to_be_hidden()
        expect(
            page.get_by_role("alert").filter(has_text="a valid API key is required").first
        ).to_be_visible()
        page.get_by_role("button", name="API key").click()
        field.fill(f" {reader} ")
        proceed.click()
        expect(page.get_by_text("There are no models yet.")).to_be_visible()
        # A key with too few rights is refused with the way out.
        headers = {"authorization": f"Bearer {admin}"}
        httpx.put(
            f"{process.url}/models/m", json={}, headers=headers, timeout=60
        ).raise_for_status()
        page.goto("/#/models/m/versions")
        page.get_by_role("button", name="Save version").click()
        refused = page.locator("#notices")
        expect(refused).to_contain_text("requires a key of scope admin")
        expect(refused).to_contain_text("changes the key")
        # The commands to copy name the variable, and never contain the key.
        open_tab(page, "Overview")
        expect(page.locator("#snippet")).to_contain_text("Bearer $DUALSTREAM_API_KEY")
        assert reader not in page.content()
        context.close()


def test_a_store_that_is_away_is_on_every_page(browser, tmp_path):
    store = tmp_path / "away.db"
    with (
        ServerProcess(f"sqlite:///{store}") as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
        browser.new_context(base_url=process.url) as context,
    ):
        create(client, "m", algorithm="sgd", features="hashed")
        learn(client, "m", samples(20))
        page = context.new_page()
        page.goto("/#/models/m")
        expect(page.locator(".model-head")).to_contain_text(re.compile("idle, last row|learning"))
        store.rename(tmp_path / "elsewhere.db")
        expect(page.locator(".model-head")).to_contain_text("store away")
        page.get_by_role("link", name="All models").click()
        expect(number(page, "Store")).to_contain_text("SQLite: away")
        expect(page.get_by_role("listitem").filter(has_text="store away")).to_be_visible()
        process.stop()
        expect(page.locator("#notices")).to_contain_text("The server does not answer.")


@pytest.mark.parametrize("page", ["wide"], indirect=True)
def test_the_api_is_described_without_the_internet(page: Page, screenshot):
    page.goto("/docs")
    expect(page.get_by_text("/models/{model_id}/learn")).to_be_visible()
    is_dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    expect(page.locator("html")).to_have_class("dark-mode" if is_dark else "")
    expect(page.get_by_role("link", name="Models", exact=True)).to_be_visible()
    screenshot(page, "docs")

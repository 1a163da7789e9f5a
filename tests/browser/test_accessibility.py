"""The rules of axe-core on each page, in both colour schemes: none is broken seriously."""

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import card, create, learn, samples, wait_for_events

AXE = Path(__file__).parents[2] / ".cache" / "axe" / "axe.min.js"
"""Where tests/fetch_tool.sh axe puts it."""
SERIOUS = ("serious", "critical")
RUN = "async (only) => (await axe.run({...only, resultTypes: ['violations']})).violations"
RULES = {"light": {}, "dark": {"runOnly": ["color-contrast", "image-alt"]}}
"""Those that depend on the colours, and the one that is broken on purpose, in the dark as well."""
TABS = ("", "/members", "/features", "/drift", "/versions", "/settings")


@pytest.fixture(scope="module")
def axe() -> str:
    assert AXE.exists(), "no axe-core: run tests/fetch_tool.sh axe"
    return AXE.read_text(encoding="utf-8")


def broken(page: Page, axe: str, scheme: str) -> list[str]:
    """Serious violations of the page, with the elements."""
    page.evaluate(axe)
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in page.evaluate(RUN, RULES[scheme])
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_is_found(browser: Browser, server: httpx.Client, axe: str, scheme):
    model, empty = f"axe-{scheme}", f"axe-empty-{scheme}"
    create(server, model, members=[{"kind": "diagonal_newton"}, {"algorithm": "splines"}])
    create(server, empty, algorithm="sgd", features="hashed")
    learn(server, model, samples(300))
    learn(server, model, samples(300, seed=1, flip=True))
    server.post(f"/models/{model}/versions", json={"name": "good"}).raise_for_status()
    with browser.new_context(base_url=str(server.base_url), color_scheme=scheme) as context:
        page = context.new_page()
        page.goto("/")
        # There may be more models, as a list.
        page.get_by_role("button", name="Cards").click()
        page.get_by_label("Search").fill(model)
        expect(
            page.get_by_role("listitem").filter(has_text=model).get_by_role("img")
        ).to_be_visible()
        assert broken(page, axe, scheme) == []
        page.get_by_role("button", name="List").click()
        assert broken(page, axe, scheme) == []
        for tab in TABS:
            page.goto(f"/#/models/{model}{tab}")
            wait_for_events(page)
            expect(card(page, "Error rate").locator(".u-over")).to_have_count(1)
            assert broken(page, axe, scheme) == [], tab
        page.goto(f"/#/models/{model}")
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_role("region", name="What each feature adds")).to_be_visible()
        assert broken(page, axe, scheme) == []
        page.goto(f"/#/models/{model}/versions")
        page.get_by_role("button", name="Roll back to good").click()
        assert broken(page, axe, scheme) == []
        for position, heading in ((f"#/models/{empty}", empty), ("#/new", "New model"),
                               ("#/models/unknown", "There is no model"),
                               (f"#/compare/{model}@good/{empty}", "Compare")):  # fmt: skip
            page.goto(f"/{position}")
            page.reload()
            expect(page.get_by_role("heading", name=heading).first).to_be_visible()
            assert broken(page, axe, scheme) == [], position
        # The check itself finds what it should.
        page.evaluate("document.querySelector('main').append(new Image())")
        assert [one.split(":")[0] for one in broken(page, axe, scheme)] == ["image-alt"]

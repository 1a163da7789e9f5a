"""Rows, and parts of the dashboard, that several test modules use."""

import httpx
import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

# Tests that do not depend on the screen run on one.
ON_A_DESKTOP = pytest.mark.parametrize("page", ["wide"], indirect=True)
ON_A_PHONE = pytest.mark.parametrize("page", ["phone"], indirect=True)


def samples(n, seed=0, flip=False):
    """Rows of two numbers and a text; `flip` inverts the labels."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((n, 2))
    y = np.where((x[:, 0] - x[:, 1] > 0) != flip, 1, -1)
    return [
        {"x": {"heat": float(a), "load": float(b), "site": "north"}, "y": int(label)}
        for (a, b), label in zip(x, y, strict=True)
    ]


def create(server: httpx.Client, model: str, **spec: object) -> None:
    server.put(f"/models/{model}", json=spec).raise_for_status()


def learn(server: httpx.Client, model: str, rows: list) -> None:
    server.post(f"/models/{model}/learn", json={"samples": rows}).raise_for_status()


def card(page: Page, title: str) -> Locator:
    """The card of the page with this title."""
    return page.locator(f'section.card[aria-label="{title}"]')


def number(page: Page, name: str) -> Locator:
    """The tile with this name."""
    return page.locator(".tile").filter(has=page.get_by_text(name, exact=True))


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    expect(page.get_by_role("tabpanel", name=name)).to_be_visible()


def pill(page: Page, text: str) -> Locator:
    """A pill of the header of a model."""
    return page.locator(".model-head .pill").filter(has_text=text)


def wait_for_events(page: Page) -> None:
    """Wait until the stream of events is open."""
    expect(page.locator(".model-head .pill").first).not_to_have_text("connecting")


def drawing(plot: Locator) -> str:
    """The picture that the canvas of a plot shows now."""
    return plot.locator("canvas").evaluate("c => c.toDataURL()")


def wait_until_redrawn(plot: Locator, before: str) -> None:
    """The text of a card changes before its plot is drawn."""
    canvas = plot.locator("canvas").element_handle()
    changed = "([canvas, before]) => canvas.toDataURL() !== before"
    plot.page.wait_for_function(changed, arg=[canvas, before])


def named(page: Page, base: str) -> str:
    """A model id for each screen."""
    return f"{base}-{page.viewport_size['width']}"

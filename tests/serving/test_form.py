"""The page in a browser: text in, translations out, and nothing that a text says becomes markup."""

from collections.abc import Iterator, Sequence

import pytest
from fake_engines import Held, upside_down
from playwright.sync_api import Browser, Page, expect
from test_listening import serving

from hf_vanilla.inference.translator import Hypothesis
from hf_vanilla.serving.batcher import Found

EVIL = "<img src=x onerror=\"document.title='executed'\">"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose faults, and whatever the policy forbids, fail the test."""
    opened, faults = browser.new_page(), []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    yield opened
    opened.close()
    assert [fault for fault in faults if "status of 4" not in fault and "ERR_" not in fault] == []


def test_a_text_that_is_typed_is_translated_by_keyboard_alone(page: Page) -> None:
    with serving(upside_down) as (address, _):
        page.goto(address)
        expect(page.get_by_label("Text")).to_be_focused()
        page.keyboard.type("ab cd")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator(".best")).to_have_text("dc ba")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(5)
        expect(rows.nth(2)).to_have_text("dc ba 2-1.000")
        expect(page.get_by_role("status")).to_have_text("Done.")
        page.get_by_label("Text").fill("two\nlines")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".best")).to_have_text("owt\nsenil")
        expect(page.locator("table")).to_have_count(0)


def test_nothing_that_a_text_or_a_translation_says_is_markup(page: Page) -> None:
    def translate(lines: Sequence[str], number: int) -> list[Found]:
        return [[Hypothesis(f"{line}{EVIL}{place}", 0.0) for place in range(number)] for line in lines]

    with serving(translate) as (address, _):
        page.goto(address)
        page.get_by_label("Text").fill(EVIL)
        page.get_by_role("button").click()
        expect(page.locator(".best")).to_have_text(f"{EVIL}{EVIL}0")
        assert page.locator("img").count() == 0
        assert page.title() == "Translate"


def test_each_text_has_its_own_direction(page: Page) -> None:
    def translate(lines: Sequence[str], number: int) -> list[Found]:
        return [[Hypothesis("שלום עולם", 0.0) for _ in range(number)] for _ in lines]

    with serving(translate) as (address, _):
        page.goto(address)
        page.get_by_label("Text").fill("Hello")
        page.get_by_role("button").click()
        best = page.locator(".best")
        expect(best).to_have_text("שלום עולם")
        assert best.evaluate("each => getComputedStyle(each).direction") == "rtl"
        assert page.get_by_label("Text").evaluate("each => getComputedStyle(each).direction") == "ltr"


def test_an_error_is_said_and_no_old_translation_stays_beside_it(page: Page) -> None:
    with serving(upside_down) as (address, _):
        page.goto(address)
        page.get_by_label("Text").fill("ab")
        page.get_by_role("button").click()
        expect(page.locator(".best")).to_have_text("ba")
        page.evaluate("document.getElementById('text').value = 'x'.repeat(10001)")
        page.get_by_role("button").click()
        expect(page.get_by_role("status")).to_have_text("Invalid request: request (10001) exceeds text limit (10000)")
        expect(page.locator(".best")).to_have_count(0)
    page.get_by_label("Text").fill("ab")
    page.get_by_role("button").click()
    expect(page.get_by_role("status")).to_have_text("The server does not answer.")


def test_while_one_text_is_translated_no_other_is_sent(page: Page, held: Held) -> None:
    with serving(held) as (address, _):
        page.goto(address)
        page.get_by_label("Text").fill("ab")
        page.get_by_role("button").click()
        expect(page.get_by_role("status")).to_have_text("Translating …")
        page.get_by_role("button").click(force=True)
        held.may_go_on.set()
        expect(page.locator(".best")).to_have_text("ba")
        assert held.begun.qsize() == 1


@pytest.mark.parametrize("width", [400, 1600])
def test_a_page_of_any_width_scrolls_downwards_only(page: Page, width: int) -> None:
    with serving(upside_down) as (address, _):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(address)
        page.get_by_label("Text").fill("x" * 300)
        page.get_by_role("button").click()
        expect(page.locator("tbody tr")).to_have_count(5)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

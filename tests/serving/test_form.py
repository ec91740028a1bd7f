"""The page in a browser: text in, translations out, and nothing that a text says becomes markup."""

from collections.abc import Iterator, Sequence

import pytest
from fake_engines import Held, upside_down
from playwright.sync_api import Browser, Page, expect
from test_listening import serving

from hf_vanilla.inference.translator import Hypothesis
from hf_vanilla.serving.batcher import Found, Wanted
from hf_vanilla.serving.engine import Drawn
from hf_vanilla.serving.picture import Picture

EVIL = "<img src=x onerror=\"document.title='executed'\">"


def looked(lines: Sequence[str], wanted: Wanted) -> list[Found]:
    """Upside down, with a picture of the characters."""

    def drawn(line: str, each: Hypothesis) -> Drawn:
        assert wanted.has_attention
        weights = [[0.25 + 0.5 * (s == len(line) - 1 - t) for s in range(len(line))] for t in range(len(each.text))]
        return Drawn(each.text, each.score, picture=Picture(list(line), list(each.text), weights))

    found = upside_down(lines, wanted)
    return [[drawn(line, one) for one in each] for line, each in zip(lines, found, strict=True)]


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose faults, and whatever the policy forbids, fail the test."""
    opened, faults = browser.new_page(), []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    yield opened
    opened.close()
    of_refusals = ("status of 4", "ERR_", "This could not", "Error: ")
    assert [fault for fault in faults if not any(each in fault for each in of_refusals)] == []


def translate(page: Page, text: str) -> None:
    page.locator("#source-0").fill(text)
    page.get_by_role("button").click()


def test_a_text_that_is_typed_is_translated_by_keyboard_alone(page: Page) -> None:
    with serving(looked) as (address, _):
        page.goto(address)
        expect(page.get_by_role("heading")).to_have_text("en to de")
        expect(page.get_by_role("status")).to_have_text("Ready.")
        page.keyboard.press("Tab")
        page.keyboard.type("ab cd")
        page.keyboard.press("Control+Enter")
        texts = page.locator(".text")
        expect(texts).to_have_count(4)
        assert texts.all_inner_texts() == ["dc ba", "dc ba 1", "dc ba 2", "dc ba 3"]
        assert page.locator(".score").all_inner_texts() == ["0.000", "-0.500", "-1.000", "-1.500"]
        assert [texts.first.get_attribute("lang"), page.locator("#source-0").get_attribute("lang")] == ["de", "en"]
        expect(page.get_by_role("status")).to_contain_text("dc ba — translated in")


def test_the_picture_is_that_of_the_chosen_translation(page: Page) -> None:
    with serving(looked) as (address, _):
        page.goto(address)
        translate(page, "abc")
        rows = page.locator("#results tbody tr")
        expect(rows).to_have_count(3)
        assert rows.first.locator("th, td").all_inner_texts() == ["c", "25", "25", "75"]
        page.get_by_role("radio").nth(1).check()
        expect(rows).to_have_count(5)


def test_of_a_long_text_the_page_says_why_there_is_no_picture(page: Page) -> None:
    def long(lines: Sequence[str], wanted: Wanted) -> list[Found]:
        return [[Drawn("x", 0.0, picture=Picture(["a"] * 121, ["x"], []))] for _ in lines]

    with serving(long) as (address, _):
        page.goto(address)
        translate(page, "abc")
        expect(page.locator(".picture")).to_have_text("With more than 120 tokens there is no picture.")


def test_each_line_has_its_translations_and_one_without_attention_no_picture(page: Page) -> None:
    with serving(upside_down) as (address, _):
        page.goto(address)
        translate(page, "two\n\nlines")
        expect(page.locator("#results > li")).to_have_count(2)
        assert page.locator("fieldset label:first-of-type .text").all_inner_texts() == ["owt", "senil"]
        expect(page.locator("details")).to_have_count(0)
        page.get_by_label("Translations to compare").select_option("1")
        translate(page, "one")
        expect(page.locator(".text")).to_have_text(["eno"])
        expect(page.locator(".score")).to_have_text([""])


def test_nothing_that_a_text_or_a_translation_says_is_markup(page: Page) -> None:
    def evil(lines: Sequence[str], wanted: Wanted) -> list[Found]:
        return [
            [Drawn(f"{line}{EVIL}{place}", 0.0, picture=Picture([EVIL], [EVIL], [[1.0]])) for place in range(2)]
            for line in lines
        ]

    with serving(evil) as (address, _):
        page.goto(address)
        translate(page, EVIL)
        expect(page.locator(".text").first).to_have_text(f"{EVIL}{EVIL}0")
        expect(page.locator("#results tbody th")).to_have_text(EVIL)
        assert page.locator("img").count() == 0
        assert page.title() == "en to de"


def test_each_text_has_its_own_direction(page: Page) -> None:
    def hebrew(lines: Sequence[str], wanted: Wanted) -> list[Found]:
        return [[Hypothesis("שלום עולם", 0.0)] for _ in lines]

    with serving(hebrew) as (address, _):
        page.goto(address)
        translate(page, "Hello")
        best = page.locator(".text")
        expect(best).to_have_text("שלום עולם")
        assert best.evaluate("each => getComputedStyle(each).direction") == "rtl"
        assert page.locator("#source-0").evaluate("each => getComputedStyle(each).direction") == "ltr"


def test_an_error_is_said_and_no_old_translation_stays_beside_it(page: Page) -> None:
    with serving(upside_down) as (address, _):
        page.goto(address)
        translate(page, "ab")
        expect(page.locator(".text").first).to_have_text("ba")
        translate(page, "x" * 10001)
        expect(page.get_by_role("status")).to_contain_text("request (10001) exceeds text limit (10000)")
        expect(page.locator(".text")).to_have_count(0)
    translate(page, "ab")
    expect(page.get_by_role("status")).to_contain_text("the server does not answer")


def test_a_new_text_takes_the_place_of_one_that_is_not_translated_yet(page: Page, held: Held) -> None:
    with serving(held) as (address, _):
        page.goto(address)
        translate(page, "first")
        assert held.begun.get(timeout=60)[0] == ["first"]
        translate(page, "second")
        translate(page, "third")
        held.may_go_on.set()
        expect(page.locator(".text").first).to_have_text("driht")
        expect(page.locator("#results > li")).to_have_count(1)


@pytest.mark.parametrize("width", [400, 1600])
def test_a_page_of_any_width_scrolls_downwards_only(page: Page, width: int) -> None:
    with serving(looked) as (address, _):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(address)
        translate(page, "x" * 100)
        expect(page.locator("#results tbody tr")).to_have_count(100)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

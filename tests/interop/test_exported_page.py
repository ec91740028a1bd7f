"""
The page in Chromium: types, translates, shows text and picture, and loads nothing from elsewhere.

`computing.py` stands in place of onnxruntime-web. `trial_page.py` uses the real one.
"""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from computing import ENGINE, Handler
from test_onnx import MakeModel, decisive

from hf_vanilla import Translator
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.interop.to_page import write_page

MOST_SECONDS = 120
TEXT = "ab cd שלום"


def expect(locator: Any, **wanted: Any) -> None:
    """Waits for what a locator is to be. (`wait_for_function` needs `eval`, which the page does not allow.)"""
    from playwright.sync_api import expect as expected

    for name, value in wanted.items():
        getattr(expected(locator), name)(value, timeout=MOST_SECONDS * 1000)


@pytest.fixture
def translator(make_model: MakeModel) -> Translator:
    tokenizer = train_tokenizer(["abcdefghij klmno שלום 你好"], "character", prefixes=["<2de>", "<2he>"])
    model = decisive(make_model(vocab_size=len(tokenizer), tie_word_embeddings=False), gain=3)
    with torch.no_grad():
        model.lm_head.weight[3 : 5 + 256] = 0  # bytes are no text
    model.generation_config.update(num_beams=4, max_length=12)
    model.generation_config.alignment = {"layer": 1, "head": 2, "row": "output"}
    return Translator(model, tokenizer)


@pytest.fixture
def address(translator: Translator, tmp_path: Path) -> Iterator[str]:
    # both graphs in float32, as they are told apart by their size
    write_page(translator.model, translator.tokenizer, tmp_path, '<b>"my" & model</b>', in_eight_bits=False)
    (tmp_path / "ort.wasm.min.mjs").write_text(ENGINE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.set_default_timeout(MOST_SECONDS * 1000)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.addresses = []
    page.on("request", lambda request: page.addresses.append(request.url))
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    yield page
    page.close()


def test_a_reader_types_and_sees_all_translations_with_scores_and_the_picture(
    page: Any, translator: Translator, address: str
) -> None:
    page.select_option("#prefix", "<2he>")
    page.fill("#source-0", TEXT)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#results table")
    wanted = translator.hypotheses(TEXT, prefix="<2he>", num_return_sequences=4)
    assert page.locator(".text").all_inner_texts() == [each.text or "(nothing)" for each in wanted]
    assert page.locator(".score").all_inner_texts() == [f"{each.score:.3f}" for each in wanted]
    assert wanted[0].text in page.inner_text("#status")
    ids = translator.encode_batch([TEXT], "<2he>")[0]
    for rank in (0, 2):
        page.locator("fieldset input").nth(rank).check()
        rows = len(wanted[rank].token_ids)
        target = translator.tokenizer.convert_ids_to_tokens(wanted[rank].token_ids[0]).strip() or "␣"
        first = page.locator("#results tbody tr").first
        expect(page.locator("#results tbody tr"), to_have_count=rows)
        expect(page.locator("#results tbody th").first, to_have_text=target)
        percents = [int(text) for text in first.locator("td").all_inner_texts()]
        assert percents == pytest.approx(attention_of(translator, ids, wanted[rank].token_ids), abs=1)
    assert page.complaints == []
    assert all(url.startswith((address, "data:,")) for url in page.addresses)


def attention_of(translator: Translator, ids: list[int], target: list[int]) -> list[float]:
    """The first row of the chosen map, in percent."""
    translator.model.set_attn_implementation("eager")
    with torch.no_grad():
        read = torch.tensor([[0, *target]])
        found = translator.model(torch.tensor([ids]), decoder_input_ids=read, output_attentions=True, use_cache=False)
    percents: list[float] = (100 * found.cross_attentions[1][0, 2, 0]).tolist()
    return percents


def test_each_line_is_translated_and_nothing_is_too_wide(page: Any, translator: Translator) -> None:
    lines = ["ab", "  ", "你好 " * 20, "<img src=x onerror=document.title=1>", "fa"]
    page.fill("#source-0", "\n".join(lines))
    page.click("#translate")
    expect(page.locator("#results > li"), to_have_count=4)
    assert page.locator(".read").all_inner_texts() == [line.strip() for line in lines if line.strip()]
    filled = [line for line in lines if line.strip()]
    best = page.locator("fieldset label:first-of-type .text").all_inner_texts()
    assert best == [text or "(nothing)" for text in translator.translate(filled, prefix="<2de>")]
    for summary in page.locator("summary").all():
        summary.click()
    expect(page.locator("#results table"), to_have_count=4)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.title() == '<b>"my" & model</b>'


def test_every_field_has_a_name_and_the_keyboard_reaches_all_of_them(page: Any) -> None:
    page.fill("#source-0", "ab")
    page.click("#translate")
    page.wait_for_selector("#results table")
    unnamed = "[...document.querySelectorAll('textarea, select, input')].filter(each => !each.labels.length).length"
    assert page.evaluate(unnamed) == 0
    page.focus("#source-0")
    reached = []
    for _ in range(7):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.localName"))
        page.keyboard.press("Tab")
    assert reached[:4] == ["source-0", "prefix", "width", "translate"]
    assert reached[4:] == ["input", "summary", "div"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page: Any, scheme: str) -> None:
    """By at least 4.5 to 1, as WCAG 2.2 asks for."""
    page.emulate_media(color_scheme=scheme)
    page.fill("#source-0", "ab")
    page.click("#translate")
    page.wait_for_selector("#results table")
    colours = """selector => {
        const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
        const pixel = colour => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
            return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)]; };
        const style = element => getComputedStyle(element);
        const found = document.querySelector(selector), own = style(found).backgroundColor;
        const ground = own === 'rgba(0, 0, 0, 0)' ? style(document.body).backgroundColor : own;
        return [pixel(style(found).color), pixel(ground)]; }"""
    for selector in ("body", "label", "legend", ".score", ".read", "#keys", "textarea", "#translate"):
        ink, ground = (luminance(each) for each in page.evaluate(colours, selector))
        assert (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05) >= 4.5, selector


def luminance(colour: list[int]) -> float:
    parts = [value / 255 for value in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_what_a_model_may_not_compute_is_told(browser: Any, address: str, tmp_path: Path) -> None:
    (tmp_path / "settings.json").unlink()
    page = browser.new_page()
    page.goto(address)
    expect(page.locator("#status"), to_contain_text="settings.json cannot be loaded")
    assert page.is_disabled("#translate")
    page.close()

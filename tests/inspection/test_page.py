"""The page on attention in a browser: it says what the arrays say, by pointer and keys, and asks for nothing else."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference.translator import Translator
from hf_vanilla.inspection import page as pages
from hf_vanilla.inspection.looking import Looking, Selection, look
from hf_vanilla.inspection.packing import codes_of
from hf_vanilla.inspection.page import page_of

WORDS = ["</script><img/src=x/onerror=alert(1)>", "שלום", "日本語", "😀", "__proto__", "plain", "$x$", "</style>"]

Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """`open_page(html, address, **context)`: offline. At its end no page may have asked or complained."""
    contexts, complaints = [], []
    file = tmp_path / "page.html"

    def open_it(html: str, address: str = "", width: int = 1280, scheme: str = "light", **options: Any) -> Any:
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True, **options
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: complaints.append(dialog.message))
        tab.on("request", lambda sent: complaints.append(sent.url.partition("#")[0]))
        tab.goto(f"{file.as_uri()}{address}")
        if options.get("java_script_enabled", True):
            tab.wait_for_selector("body[data-ready]", timeout=60_000)
        return tab

    yield open_it
    for context in contexts:
        context.close()
    assert set(complaints) <= {file.as_uri()}


@pytest.fixture
def looking(make_model: Callable[..., Model]) -> Looking:
    """Of words that would break out of a page."""
    tokenizer = train_tokenizer(WORDS, "word")
    translator = Translator(make_model(vocab_size=len(tokenizer)), tokenizer)
    return look(translator, " ".join(WORDS), " ".join(reversed(WORDS[1:])))


def values_in(tab: Any, what: str = "attention") -> np.ndarray:
    """The map that is shown, as the page computes it from its bytes."""
    found = tab.evaluate(f"(({{table, width, height}}) => [Array.from(table), width, height])(current.{what})")
    return np.array(found[0]).reshape(found[2], found[1])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_fits_and_asks_for_nothing(width: int, scheme: str, looking: Looking, open_page: Open) -> None:
    tab = open_page(page_of(looking, "a model"), width=width, scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (scheme == "dark")


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_maps_in_the_page_are_those_of_the_model(kind: Any, looking: Looking, open_page: Open) -> None:
    tab = open_page(page_of(looking, "a model"))
    maps = looking.attention.maps.of(kind)
    weighted = looking.attention.weighted.of(kind)
    for layer, weights in enumerate(maps):
        for head in (*range(len(weights)), None):
            name = "mean" if head is None else head + 1
            tab.evaluate(f"location.hash = 'kind={kind}&layer={layer + 1}&head={name}'")
            tab.wait_for_function(
                f"state.kind === '{kind}' && state.layer === {layer} && nameOfHeads().includes('{name}')"
            )
            expected = weights.mean(0) if head is None else weights[head]
            assert values_in(tab) == pytest.approx(expected, abs=0.004)
            norms = looking.attention.weighted_together[kind][layer] if head is None else weighted[layer, head]
            shares = norms / norms.sum(-1, keepdims=True)
            assert values_in(tab, "weighted") == pytest.approx(shares, abs=0.015)
    tab.evaluate(f"location.hash = 'kind={kind}&layer=2&head=1.3'")
    tab.wait_for_function("state.heads.length === 2")
    assert values_in(tab) == pytest.approx(maps[1, [0, 2]].mean(0), abs=0.004)


def test_the_effect_in_the_page_is_that_of_the_model(looking: Looking, open_page: Open) -> None:
    assert looking.effect is not None
    tab = open_page(page_of(looking, "a model"))
    assert values_in(tab, "effect") == pytest.approx(looking.effect[:, looking.parts], abs=1e-4)
    tab.select_option("#row", "input")
    assert values_in(tab, "effect") == pytest.approx(looking.effect[:-1, looking.parts], abs=1e-4)
    assert values_in(tab) == pytest.approx(looking.attention.maps.cross[-1].mean(0)[1:], abs=0.004)
    agreement = looking.agreement[-1][-1]["input"]["attention"]
    assert f"{100 * agreement['same_top']:.1f} %" in tab.text_content("#agreement")
    assert f"rank correlation {agreement['rank_correlation']:.2f}" in tab.text_content("#agreement")


def test_what_is_left_out_is_shown_as_the_rest(
    looking: Looking, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LARGEST", (4,))
    tab = open_page(page_of(looking, "a model"), "#kind=encoder&layer=1&head=2")
    exact, found = looking.attention.maps.encoder[0, 1], values_in(tab)
    rest = tab.evaluate("Array.from({length: current.attention.height}, (_, row) => restOf(current.attention, row))")
    assert found.sum(1) + rest == pytest.approx(1, abs=1e-6)
    for row, values in enumerate(exact):
        kept = np.sort(np.argsort(values)[-4:])
        assert set(np.flatnonzero(found[row])) <= set(kept)
        assert found[row, kept] == pytest.approx(values[kept], abs=0.004)
        assert rest[row] == pytest.approx(1 - values[kept].sum(), abs=0.016)
    tab.focus("#map .cells")
    tab.keyboard.press("ArrowRight")
    assert f"not in this page: {100 * rest[0]:.1f} %" in tab.text_content("#said")


def test_keys_reach_everything_and_the_address_keeps_it(looking: Looking, open_page: Open) -> None:
    tab = open_page(page_of(looking, "a model"))

    def state() -> dict[str, str]:
        return dict(part.split("=") for part in tab.evaluate("location.hash.slice(1)").split("&"))

    for key, name, value in (
        *(("1", "kind", "encoder"), ("PageDown", "layer", "2"), ("2", "kind", "decoder"), ("PageUp", "layer", "1")),
        *(("3", "kind", "cross"), ("]", "head", "1"), ("]", "head", "2"), ("[", "head", "1"), ("r", "row", "input")),
        *(("w", "words", "1"), ("t", "across", "1")),
    ):
        tab.keyboard.press(key)
        assert state()[name] == value
    tab.keyboard.press("?")
    assert tab.is_visible("#keys")
    tab.keyboard.press("Escape")
    assert not tab.is_visible("#keys")
    tab.focus("#map .cells")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        tab.keyboard.press(key)
    assert (state()["at-row"], state()["at-column"]) == ("2", "2")
    said, address = tab.text_content("#said"), tab.evaluate("location.hash")
    assert values_in(tab)[1, 1] == pytest.approx(float(re.findall(r"with ([\d.]+) %", said)[0]) / 100, abs=0.0006)
    again = open_page(page_of(looking, "a model"), address)
    assert (again.text_content("#said"), again.evaluate("location.hash")) == (said, address)
    tab.keyboard.press("Escape")
    assert "at-row" not in state()


def test_pointing_shows_and_clicking_holds(looking: Looking, open_page: Open) -> None:
    tab = open_page(page_of(looking, "a model"))
    nothing = tab.text_content("#said")
    label = tab.locator("#lines text[data-side=row]").nth(2)
    label.hover()
    assert "looks at" not in nothing
    shown = tab.text_content("#said")
    assert f"“{looking.attention.target_tokens[2]}”\u2069 looks at" in shown
    label.click()
    tab.mouse.move(1, 1)
    assert tab.text_content("#said") == shown
    tab.locator("#lines text[data-side=row]").nth(2).click()
    tab.mouse.move(1, 1)
    assert tab.text_content("#said") == nothing


def test_heads_are_chosen_in_the_overview(looking: Looking, open_page: Open) -> None:
    tab = open_page(page_of(looking, "a model"))
    assert tab.locator("#overview button").count() == 3 * (4 + 1)
    tab.locator("#overview button[tabindex='0']").focus()
    for key in ("ArrowRight", "ArrowUp", "Enter"):
        tab.keyboard.press(key)
    assert tab.evaluate("[state.layer, state.heads]") == [1, [1]]
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Shift+Enter")
    assert tab.evaluate("[state.layer, state.heads]") == [1, [1, 2]]
    tab.locator("#overview button").nth(0).click()
    card = tab.text_content("#card")
    assert "layer 1, head 1: " in card
    entropy = looking.statistics["cross"]["entropy"][0, 0]
    assert f"entropy{entropy:.3f}".rstrip("0") in card
    tab.select_option("#figure", "entropy")
    assert tab.locator("#overview button .value").count() == 12


@pytest.mark.parametrize("largest", [None, 4])
def test_a_page_of_the_mean_alone_works(
    largest: int | None, looking: Looking, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LARGEST", (largest,))
    tab = open_page(page_of(looking, "a model", Selection(heads=())))
    for key in ("3", "]", "1", "PageUp"):
        tab.keyboard.press(key)
    exact = looking.attention.maps.encoder[0].mean(0)
    norms = looking.attention.weighted_together["encoder"][0]
    found, weighted = values_in(tab), values_in(tab, "weighted")
    if largest is None:
        assert found == pytest.approx(exact, abs=0.004)
        assert weighted == pytest.approx(norms / norms.sum(-1, keepdims=True), abs=0.015)
    assert found.max(1) == pytest.approx(exact.max(1), abs=0.004)
    assert weighted.argmax(1).tolist() == norms.argmax(1).tolist()
    assert tab.locator("#overview button").count() == len(looking.attention.maps.encoder)
    tab.locator("#overview button").nth(1).click()
    assert tab.evaluate("[state.layer, state.heads]") == [1, []]
    tab.locator("#overview button").nth(1).press("ArrowUp")
    assert "only the mean of the heads" in tab.text_content("#card")
    assert tab.is_hidden("#figure")


def test_tokens_are_text_and_nothing_else(looking: Looking, open_page: Open) -> None:
    tab = open_page(page_of(looking, "<b>model</b>"))
    assert tab.locator("img, b").count() == 0
    for box in ("#lines", "#map", "#table"):
        text = tab.text_content(box)
        words = WORDS[1:] if box == "#table" else WORDS  # the first is in the source alone
        assert all(word[:12] in text for word in words)
    assert tab.evaluate("[...document.querySelectorAll('#table th bdi')].every(each => each.dir === 'auto')")


def test_bytes_of_a_character_are_named_by_it(
    make_translator: Callable[..., Translator], open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = look(make_translator(), "a ß😀", "Xe")
    assert [str(token) for token in looking.attention.source_tokens] == [
        *("a", "␣", "ß 1/2", "ß 2/2", "😀 1/4", "😀 2/4", "😀 3/4", "😀 4/4", "</s>")
    ]
    tab = open_page(page_of(looking, "a model"))
    assert "ß 2/2" in tab.text_content("#map")
    tab.keyboard.press("w")
    assert tab.locator("#map .columns bdi").all_text_contents() == ["a", "␣", "ß😀", "</s>"]
    words = looking.attention.maps.cross[-1].mean(0)
    summed = np.stack([words[:, 0], words[:, 1], words[:, 2:8].sum(1), words[:, 8]], 1)
    assert values_in(tab) == pytest.approx(np.stack([summed[:2].mean(0), summed[2]]), abs=0.01)
    assert looking.effect is not None
    effect = np.stack([looking.effect[:2].sum(0), looking.effect[2]])
    assert values_in(tab, "effect") == pytest.approx(effect, abs=2e-4)
    assert "the log-probability of each target word is" in tab.text_content("#effect-note")
    monkeypatch.setattr(pages, "LARGEST", (4,))
    tab = open_page(page_of(looking, "a model"), "#words=1&head=mean")
    largest = np.sort(words, axis=1)[:, -4:].sum(1)
    assert values_in(tab).sum(1) == pytest.approx([largest[:2].mean(), largest[2]], abs=0.016)


def test_what_tokens_of_a_single_word_do_is_not_shown_for_the_word(
    make_translator: Callable[..., Translator], open_page: Open
) -> None:
    looking = look(make_translator(), "words", "Xe")
    assert looking.effect is not None
    tab = open_page(page_of(looking, "a model"))
    assert values_in(tab, "effect") == pytest.approx(looking.effect[:, looking.parts], abs=1e-4)
    tab.keyboard.press("w")
    assert tab.evaluate("current.effect") is None
    assert tab.is_hidden("#effect")
    assert "choose tokens in place of whole words" in tab.text_content("#effect-note")
    tab.focus("#map .cells")
    tab.keyboard.press("ArrowRight")
    assert "log-probability" not in tab.text_content("#said")
    tab.keyboard.press("w")
    assert tab.is_visible("#effect")


def test_a_space_in_front_of_a_token_is_marked(make_model: Callable[..., Model], open_page: Open) -> None:
    tokenizer = train_tokenizer(["the the a", "the a"], "bpe", vocab_size=266)
    looking = look(Translator(make_model(vocab_size=len(tokenizer)), tokenizer), "the the", "the")
    tab = open_page(page_of(looking, "a model"))
    assert tab.locator("#map .columns bdi").all_text_contents() == ["the", "·the", "</s>"]
    tab.keyboard.press("w")
    assert tab.locator("#map .columns bdi").all_text_contents() == ["the", "the", "</s>"]


def test_what_is_shown_can_be_saved(looking: Looking, open_page: Open) -> None:
    tab = open_page(page_of(looking, "a model"))
    saved = {}
    for kind in ("svg", "png", "tsv"):
        with tab.expect_download() as download:
            tab.click(f"#{kind}")
        saved[kind] = Path(download.value.path()).read_bytes()
    drawing = ElementTree.fromstring(saved["svg"])  # noqa: S314 - the page has made it
    texts = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"שלום", "日本語", "😀"} <= set(texts)
    assert saved["png"].startswith(b"\x89PNG")
    header, *rows = [line.split("\t") for line in saved["tsv"].decode().splitlines()]
    assert header[1:] == [*WORDS, "</s>"]
    values = np.array([row[1:] for row in rows], float)
    assert values == pytest.approx(looking.attention.maps.cross[-1].mean(0), abs=0.004)


def test_weights_that_are_not_in_the_page_are_empty_where_it_is_saved(
    looking: Looking, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LARGEST", (4,))
    tab = open_page(page_of(looking, "a model"), "#kind=encoder&layer=1&head=2")
    with tab.expect_download() as download:
        tab.click("#tsv")
    lines = Path(download.value.path()).read_text(encoding="utf-8").split("\n")[:-1]
    header, *rows = [line.split("\t") for line in lines]
    assert header[1:] == [*WORDS, "</s>", "the rest"]
    for row, exact in zip(rows, looking.attention.maps.encoder[0, 1], strict=True):
        kept = np.sort(np.argsort(exact)[-4:])
        filled = kept[codes_of(exact[kept]) > 0]
        assert [place for place, cell in enumerate(row[1:-1]) if cell] == filled.tolist()
        assert [float(row[1:][place]) for place in filled] == pytest.approx(exact[filled], abs=0.004)
        assert float(row[-1]) == pytest.approx(1 - exact[kept].sum(), abs=0.016)


def test_without_javascript_there_is_the_table(looking: Looking, open_page: Open) -> None:
    tab = open_page(page_of(looking, "a model"), java_script_enabled=False)
    rows = tab.locator("#table tr")
    assert rows.count() == len(looking.attention.target_ids)
    weights = looking.attention.maps.cross[-1].mean(0)[3]
    cells = rows.nth(3).locator("td").all_text_contents()
    assert [float(re.findall(r"([\d.]+)\s%", cell)[0]) for cell in cells[:5]] == pytest.approx(
        np.sort(weights)[::-1][:5] * 100, abs=0.06
    )
    assert tab.is_hidden("#panel")


# --- Without a browser ----------------------------------------------------------------------------------------------


def test_only_what_is_asked_for_is_in_the_page(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(pages, "packed", lambda maps, largest, norms: given.append(len(maps)) or "")
    page_of(looking, "a model")
    page_of(looking, "a model", Selection(("cross",), (0, 2), (1,)))
    page_of(looking, "a model", Selection(("encoder",), heads=()))
    assert given == [8 * (4 + 2), 2 * (1 + 2), 2 * 2]
    assert "It begins with" in page_of(looking, "a model", Selection(("cross",), (0, 2), (1,)))
    assert "It begins with" not in page_of(looking, "a model", Selection(("cross",), (0, 1)))
    with pytest.raises(InvalidDataError, match="no such attention"):
        page_of(looking, "a model", Selection(("cross",), (3,)))
    with pytest.raises(InvalidDataError, match="no such attention"):
        page_of(looking, "a model", Selection(("cross",), heads=(4,)))


def test_a_page_that_is_too_large_offers_a_selection(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_BYTES", 30_000)
    with pytest.raises(InvalidDataError, match=r"^the page would have 0\.\d MB, .* --kind, --layer or --head$"):
        page_of(looking, "a model")

"""The page shows what is asked for, and no text gets out of its place."""

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser

import pytest

from hf_vanilla.evaluation.examples import Examples
from hf_vanilla.evaluation.metrics import METRICS, metrics_with
from hf_vanilla.evaluation.outcome import Outcome, System, outcome_of
from hf_vanilla.evaluation.report_page import MAX_SHOWN, SENTENCES, buckets_of, lengths_of, page_of, too_much
from hf_vanilla.pages import visible

HOSTILE = [
    "<script>alert(1)</script>",
    "</style></dd></dl></body>&amp; & &lt;",
    "\"quoted\" 'text' onload=x `y` {{ 7 * 7 }} {% raw %}",
    "<img src=//evil.example/x onerror=alert(1)>",
    "שלום עולם \u202e gnp.exe \u2066 \u200f",
    "\x00\x07\x1b[31m\x7f\x85 \u2028 \u2029 \ufeff \ufffe",
    "--><!--",
    "javascript:alert(1)",
]


class Reader(HTMLParser):
    """Which tags and attributes there are, and the text of each `dd`."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "rect", "line"):
            self.open.append(tag)
        if tag == "dd":
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line"):
            assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        if "dd" in self.open:
            self.texts[-1] += data


def outcome(
    hypotheses: list[str],
    references: list[list[str]],
    sources: list[str] | None = None,
    others: list[str] | None = None,
    metrics: tuple[str, ...] = ("bleu", "chrf", "exact_match"),
    name: str = "set",
) -> Outcome:
    parts = None if sources is None else [(source,) for source in sources]
    examples = Examples(name, range(len(references)), parts, references)
    baseline = System("other", others) if others else None
    return outcome_of(examples, metrics_with({}, metrics), System("system", hypotheses), baseline)


def sentences_of(page: str, title: str) -> list[str]:
    """The texts under a heading, without tags."""
    (part,) = re.findall(rf">{title}</h3>.*?<ul[^>]*>(.*?)</ul>", page, flags=re.DOTALL)
    return [re.sub("<[^>]*>", "", each) for each in re.findall(r"<li>(.*?)</li>", part, flags=re.DOTALL)]


def test_no_text_is_markup() -> None:
    texts = [*HOSTILE, "harmless"]
    page = page_of([outcome(texts, [[text, text[::-1]] for text in texts], texts, texts[::-1], name=HOSTILE[0])])
    reader = Reader(page)
    assert reader.open == []
    assert not reader.tags & {"script", "img", "a", "iframe", "link", "object", "form"}
    assert not [name for name in reader.attributes if name.startswith("on") or name in ("src", "style", "srcset")]
    assert page.count("</style>") == page.count("<style>") == 1
    shown = [re.sub(r"U\+([0-9A-F]{4})", lambda found: chr(int(found[1], 16)), text) for text in reader.texts]
    assert {text for text in HOSTILE if text in shown} == set(HOSTILE)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]", page)


def test_names_of_systems_and_sets_are_no_markup() -> None:
    examples = Examples("<b>set</b>", range(1), None, [["a"]])
    chosen = metrics_with({}, ["chrf"])
    found = outcome_of(examples, chosen, System("<i>one</i>", ["a"]), System("<u>two</u>", ["b"]))
    page = page_of([found, found])
    assert not Reader(page).tags & {"b", "i", "u"}
    assert "&lt;i&gt;one&lt;/i&gt;" in page


def test_only_the_style_of_the_page_itself_is_allowed() -> None:
    page = page_of([outcome(["a"], [["a"]])])
    (style,) = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; " in page
    assert not re.search(r"https?:|//\w|url\(|@import|src=|href=\"(?!#)", page)


def test_tables_say_what_their_rows_and_columns_are() -> None:
    page = page_of([outcome(["a b", "c"], [["a b"], ["c d"]], others=["a", "c"], metrics=tuple(METRICS))])
    assert page.count("<table>") == page.count("<caption>") == 2
    for name in METRICS:
        assert re.search(rf'<th scope="row">{re.escape(name)}[< ]', page)
    assert '<html lang="en">' in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("less&nbsp;is&nbsp;better") == 3


def test_worst_and_best_are_by_the_score_of_the_sentence() -> None:
    references = [[f"a sentence of some length number {number}"] for number in range(40)]
    hypotheses = [group[0] for group in references]
    hypotheses[17], hypotheses[23] = "xxx", "a sentence of zzz"
    page = page_of([outcome(hypotheses, references, metrics=("bleu", "character_error_rate"))])
    worst = sentences_of(page, "Worst")
    assert len(worst) == SENTENCES
    assert worst[0].startswith("Line 18, character_error_rate 100.0")
    assert worst[1].startswith("Line 24, ")
    assert all("character_error_rate 0.0" in text for text in sentences_of(page, "Best"))


def test_a_single_sentence_is_judged_by_chrf_if_only_bleu_and_exact_match_are_measured() -> None:
    page = page_of([outcome(["abc", "abd"], [["abc"], ["xyz"]], metrics=("bleu", "exact_match"))])
    assert sentences_of(page, "Best")[0].startswith("Line 1, chrf 100.0")
    assert sentences_of(page, "Worst")[0].startswith("Line 2, chrf 0.0")


def test_longest_and_shortest_are_by_the_source() -> None:
    sources = [" ".join("w" * length) for length in (5, 1, 9, 3)]
    page = page_of([outcome(["r"] * 4, [["r"]] * 4, sources)])
    assert [text.partition(",")[0] for text in sentences_of(page, "Longest")] == [
        "Line 3",
        "Line 1",
        "Line 4",
        "Line 2",
    ]
    assert sentences_of(page, "Shortest")[0].startswith("Line 2,")


@pytest.mark.parametrize(("metric", "sign"), [("chrf", 1), ("ter", -1)])
def test_where_systems_differ_most_is_shown_in_both_directions(metric: str, sign: int) -> None:
    references = [[f"this is sentence number {number}"] for number in range(9)]
    right = [group[0] for group in references]
    mine, other = list(right), list(right)
    mine[2], mine[4], other[7] = "this is x y 2", "x", "y"
    page = page_of([outcome(mine, references, others=other, metrics=(metric,))])
    better, worse = (
        sentences_of(page, "Better than the other system"),
        sentences_of(page, "Worse than the other system"),
    )
    assert [text.partition(",")[0] for text in better] == ["Line 8"]
    assert [text.partition(",")[0] for text in worse] == ["Line 5", "Line 3"]
    assert " against " in worse[0]


def test_every_sentence_is_in_one_bucket_of_lengths() -> None:
    sources = [" ".join(["w"] * (1 + number % 30)) for number in range(300)]
    found = outcome(["a"] * 300, [["a"]] * 300, sources, metrics=("exact_match",))
    lengths, what = lengths_of(found.examples)
    buckets = buckets_of(found, lengths)
    assert what == "words of the source"
    assert sum(bucket.sentences for bucket in buckets) == 300
    bounds = [list(map(int, bucket.label.split("\u2013"))) for bucket in buckets]
    assert (bounds[0][0], bounds[-1][-1]) == (1, 30)
    assert all(before[-1] < after[0] for before, after in itertools.pairwise(bounds))
    assert all(10 <= bucket.sentences <= 70 for bucket in buckets)


def test_the_scores_of_a_bucket_are_those_of_its_sentences() -> None:
    sources, right = ["a", "c d e f", "b", "g h i j"], [["x"]] * 4
    found = outcome(["x", "x", "x", "y"], right, sources, others=["y", "y", "x", "x"], metrics=("exact_match",))
    buckets = buckets_of(found, lengths_of(found.examples)[0])
    assert [(bucket.label, [bar.score for bar in bucket.bars]) for bucket in buckets] == [
        ("1", [100.0, 50.0]),
        ("4", [50.0, 50.0]),
    ]


def test_sources_of_one_length_are_one_bucket() -> None:
    found = outcome(["x"] * 5, [["x"]] * 5, ["a b c"] * 5)
    (bucket,) = buckets_of(found, lengths_of(found.examples)[0])
    assert (bucket.label, bucket.sentences) == ("3", 5)


def test_texts_without_words_are_measured_and_compared_by_characters() -> None:
    found = outcome(["15:30", "walkd"], [["15:31"], ["walked"]], ["abc", "abcdef"])
    assert lengths_of(found.examples)[1] == "characters of the source"
    page = page_of([found])
    assert "15:3<del>0</del>" in page
    assert "15:3<ins>1</ins>" in page


def test_words_that_differ_are_marked_without_the_space_after_them() -> None:
    page = page_of([outcome(["the black cat sat"], [["the cat sat down"]])])
    assert "the <del>black</del> cat sat" in page
    assert "the cat sat <ins>down</ins>" in page


def test_pieces_are_the_whole_text() -> None:
    units, others = ["  ", "a ", "b  ", "c"], ["a ", "x ", "c "]
    pieces = too_much(units, others)
    assert "".join(piece.text for piece in pieces) == "".join(units)
    assert [piece.text for piece in pieces if piece.differs and piece.text.strip()] == ["b"]


def test_a_long_text_is_cut_and_that_is_said() -> None:
    text = "word " * 100_000
    page = page_of([outcome([text], [[text]], [text])])
    assert f"{len(text) - MAX_SHOWN:,} more characters" in page
    assert len(page) < 50_000


def test_nothing_is_shown_as_empty() -> None:
    page = page_of([outcome(["", "a"], [["b"], ["a"]], ["", "x"])])
    assert page.count('<span class="empty">(empty)</span>') >= 2


def test_invisible_characters_are_named() -> None:
    assert visible("a\u202eb\x00") == ("a<span class=named>U+202E</span>b<span class=named>U+0000</span>")
    assert visible("a\u200db \u00ad \t é") == "a\u200db \u00ad \t é"  # joiners are part of words and emoji

"""Lessons: what they say is what closed forms, other ways to compute it, and known numbers say."""

import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from hf_vanilla.inspection import lessons
from hf_vanilla.inspection.lessons import depth, length, positions, saturation, write_lessons
from hf_vanilla.inspection.lessons.figure import attributes_of, inline
from hf_vanilla.inspection.lessons.lesson import Lesson, Table, shown
from hf_vanilla.pages import hash_of
from hf_vanilla_cli import main

# --- Positions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [-20, -1, 1, 7, 50])
def test_a_step_is_a_rotation(step: int) -> None:
    here = torch.arange(max(0, -step), 200)
    turned = positions.encoding(here, 64) @ positions.rotation(step, 64).T
    for place in (0, 3, 100):
        angles = [(int(here[place]) + step) / 10_000 ** (2 * i / 64) for i in range(32)]
        expected = [value for angle in angles for value in (math.sin(angle), math.cos(angle))]
        assert turned[place].tolist() == pytest.approx(expected, abs=1e-12)
    assert positions.error_of_rotation(step) < 1e-12
    matrix = positions.rotation(step, 64)
    assert (matrix @ matrix.T - torch.eye(64, dtype=torch.float64)).abs().max() < 1e-12


def test_similarity_depends_on_the_distance_and_is_not_monotone() -> None:
    table = positions.encoding(torch.arange(150), 64)
    products = table @ table.T
    for distance in (0, 1, 5, 50, 100):
        expected = positions.similarity(distance, 64)
        assert products.diagonal(distance).tolist() == pytest.approx([expected] * (150 - distance), abs=1e-10)
    known = {0: 32, 5: 23.5, 50: 15.7, 100: 17.9}
    assert {k: round(positions.similarity(k, 64), 1) for k in known} == known
    assert positions.rises([3, 2, 2.5, 2.5, 1, 4]) == [2, 5]


def test_the_lesson_on_positions_says_what_the_numbers_are() -> None:
    lesson = positions.positions_lesson()
    assert "is not always more alike" in lesson.title
    values = [positions.similarity(distance, 64) for distance in range(200)]
    rising = sum(b > a for a, b in pairwise(values))
    assert f"it rises {rising} times in the first 200 distances, the first time from 5 to 6" in lesson.shows[2]
    assert max(row[1] for row in lesson.tables[1].rows) < 1e-12


# --- Saturation -------------------------------------------------------------------------------------------------------


def test_saturation_is_that_of_the_known_table() -> None:
    """Measured before, with other random numbers: the mean largest weight of ten keys."""
    known = {1: 0.26, 4: 0.51, 16: 0.73, 64: 0.86, 256: 0.92, 1024: 0.96, 4096: 0.99}
    (table,) = saturation.saturation_lesson().tables
    assert [row[0] for row in table.rows] == list(known)
    for size, variance, largest, scaled, *_ in table.rows:
        assert largest == pytest.approx(known[int(size)], abs=0.02)
        assert scaled == pytest.approx(0.26 if size == 1 else 0.32, abs=0.02)
        assert variance == pytest.approx(size, rel=0.06)


def test_largest_weight_entropy_and_slope_by_hand() -> None:
    scores = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], dtype=torch.float64)
    found = saturation.saturation_of(scores)
    assert found.largest == pytest.approx((0.75 + 0.5) / 2)
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75)) / math.log(2)
    assert found.entropy == pytest.approx((entropy + 1) / 2)
    jacobians = [torch.autograd.functional.jacobian(lambda row: row.softmax(-1), row) for row in scores]
    assert found.slope == pytest.approx(sum(float(each.norm()) for each in jacobians) / 2)


# --- Length -----------------------------------------------------------------------------------------------------------


def test_a_sequence_counts_as_copied_if_greedy_search_copies_it() -> None:
    model = length.trained("sinusoidal", 3, steps=60)
    texts = length.sequences(40, 5, torch.Generator().manual_seed(2))
    right = model(input_ids=texts, labels=texts).logits.argmax(-1) == texts
    found = model.generate(texts, num_beams=1, do_sample=False, max_length=7)
    copied = [row[1 : 1 + 6].tolist() == text.tolist() for row, text in zip(found, texts, strict=True)]
    assert right.all(1).tolist() == copied


@pytest.mark.parametrize("kind", length.KINDS)
def test_shares_are_of_sequences_and_of_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is right at all but the seventh token of each sequence."""

    class Wrong(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
            said = labels.clone()
            if labels.shape[1] > 7:
                said[:, 6] = (said[:, 6] - 2) % 10 + 3
            return type("Output", (), {"logits": torch.nn.functional.one_hot(said, 13).float()})

    wrong: Any = Wrong()
    found = length.copied_by(wrong, 1)
    assert found.whole == {each: float(each == 6) for each in length.TESTED}
    assert found.tokens[6] == 1
    assert found.tokens[12] == pytest.approx(12 / 13)
    table = length.copier(kind).get_encoder().embed_positions(torch.arange(21)[None])
    assert table.shape == (1, 21, 64)


def test_the_training_has_the_lengths_that_the_lesson_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, make = set(), length.sequences

    def watched(number: int, long: int, generator: torch.Generator) -> torch.Tensor:
        seen.add(long)
        return make(number, long, generator)

    monkeypatch.setattr(length, "sequences", watched)
    state = torch.get_rng_state()
    length.trained("learned", 1, steps=60)
    assert seen == set(range(4, 13))
    assert torch.equal(torch.get_rng_state(), state)


# --- Depth ------------------------------------------------------------------------------------------------------------


def test_gradients_grow_with_post_norm_and_large_first_weights_alone() -> None:
    ours_post, ours_pre = (depth.gradients_by_layer(norm_first, 7) for norm_first in (False, True))
    xavier_post, xavier_pre = (depth.gradients_by_layer(norm_first, 7, xavier=True) for norm_first in (False, True))
    assert xavier_post[-1] > 10 * xavier_post[0]
    assert xavier_pre[-1] < xavier_pre[0]
    assert 0.5 < ours_post[-1] / ours_post[0] < 2
    assert 0.4 < ours_pre[-1] / ours_pre[0] < 1.2


def test_first_weights_are_ours_unless_xaviers_are_asked_for() -> None:
    ours, xavier = (depth.first_model(False, 1, each).get_decoder().layers[5].feed_forward for each in (False, True))
    assert float(ours.fc2.weight.detach().abs().max()) == pytest.approx(1 / math.sqrt(256), rel=0.01)
    assert float(xavier.fc2.weight.detach().abs().max()) == pytest.approx(math.sqrt(6 / (256 + 64)), rel=0.01)


# --- What is written --------------------------------------------------------------------------------------------------

HOSTILE = "</style><img src=x onerror=alert(1)>"


def a_lesson() -> Lesson:
    def draw(figure: Any) -> None:
        axis = figure.subplots()
        axis.plot([1, 2], [3, 1], "o--", label="a line")
        axis.axvspan(1, 1.5, alpha=0.2)
        axis.legend()

    return Lesson("one", HOSTILE, "“A sentence”", "Here", ["It is so."], 'A "figure"', [table()], draw)


def table() -> Table:
    return Table("Numbers", ["k", "much"], [[1, 0.123456], [2, 12345.6]])


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with the extra plots")
    monkeypatch.setattr(lessons, "LESSONS", (a_lesson, positions.positions_lesson))
    monkeypatch.setattr(lessons.write_lessons, "__defaults__", (lambda message: None, lessons.LESSONS))
    done = CliRunner().invoke(main, ["inspect", "--lessons", str(tmp_path / "lessons")])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tmp_path / 'lessons' / 'index.html'}\n"
    return tmp_path / "lessons"


def test_each_lesson_has_a_figure_and_its_numbers(written: Path) -> None:
    assert sorted(file.name for file in written.iterdir()) == [
        *("index.html", "lessons.json", "one.md", "one.svg", "positions.md", "positions.svg")
    ]
    facts = json.loads((written / "lessons.json").read_text(encoding="utf-8"))["lessons"]
    assert facts[0]["tables"] == [{"title": "Numbers", "columns": ["k", "much"], "rows": [[1, 0.123456], [2, 12345.6]]}]
    assert "| 1 | 0.123 |\n| 2 | 12,346 |" in (written / "one.md").read_text(encoding="utf-8")
    assert shown(2.2e-14) == "2.2e-14"
    assert facts[1] == json.loads(json.dumps(positions.positions_lesson().as_dict()))


class Names(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for key, value in attrs:
            self.attributes.add(key)
            if key == "id":
                self.ids.append(str(value))
            if key == "href" or str(value).startswith("url("):
                self.links.append(str(value).removeprefix("url(").rstrip(")"))


def test_the_page_needs_nothing_else_and_allows_nothing_else(written: Path) -> None:
    page = (written / "index.html").read_text(encoding="utf-8")
    names = Names()
    names.feed(page)
    assert len(set(names.ids)) == len(names.ids)
    assert {link.removeprefix("#") for link in names.links} <= set(names.ids)
    assert not names.attributes & {"style", "src", "onerror", "xlink:href"}
    assert not names.tags & {"script", "img", "image", "link"}
    (style,) = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    assert f"default-src 'none'; style-src '{hash_of(style)}'; base-uri 'none'" in page
    assert "&lt;/style&gt;&lt;img src=x" in page
    assert 'aria-label="A &#34;figure&#34;"' in page


def test_a_figure_of_the_page_has_the_colour_of_its_text() -> None:
    style, shape = '<style type="a">x</style>', '<g id="a" style="stroke: #000000; fill: none"/>'
    svg = f'<?xml?><svg height="2" viewBox="0 0 1 1" x="1">{style}{shape}</svg>'
    found = inline(svg, "n", "words")
    assert (
        found
        == '<svg viewBox="0 0 1 1" role="img" aria-label="words"><g id="n-a" stroke="currentColor" fill="none"/></svg>'
    )
    assert attributes_of("a: b;") == ' a="b"'


def test_a_folder_that_has_files_is_left_as_it_is(written: Path, tmp_path: Path) -> None:
    before = (written / "one.md").read_bytes()
    again = CliRunner().invoke(main, ["inspect", "--lessons", str(written)])
    assert again.exit_code != 0
    assert "is not empty" in again.output
    assert (written / "one.md").read_bytes() == before
    with_run = CliRunner().invoke(main, ["inspect", str(tmp_path), "--lessons", str(tmp_path / "new")])
    assert "--lessons needs no RUN" in with_run.output


def test_a_lesson_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Lesson:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_lessons(tmp_path / "lessons", lessons=[failing])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("width", "scheme", "ink"), [(400, "dark", (230, 232, 234)), (1280, "light", (28, 31, 36))])
def test_the_page_is_silent_and_fits(
    written: Path, browser: Any, width: int, scheme: str, ink: tuple[int, ...]
) -> None:
    said: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
    tab = context.new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("request", lambda sent: said.append(sent.url))
    tab.goto((written / "index.html").as_uri())
    assert said == [(written / "index.html").as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    colours = tab.evaluate("[...document.querySelectorAll('svg')].map(each => getComputedStyle(each).fill)")
    assert colours == [f"rgb{ink}"] * 2
    assert tab.evaluate("document.querySelector('svg').getBoundingClientRect().width") > 300

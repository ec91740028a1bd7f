"""The attention picture of a model card: of a validation pair, of the weights of now, and no reason to fail."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla import workflow
from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.dataset import LengthLimits, encode_corpora
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inspection import card_picture, figure
from hf_vanilla.inspection.attention import Attention, attend_by
from hf_vanilla.training.preparation import encoded_file
from hf_vanilla.training.recipe import load_recipe

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
SOURCES = ["abc", "", "m" * 21, "klmn", "abcdefghijk lmnop"]  # 3, 0, 21, 4 and 17 tokens


@pytest.fixture
def make_run(make_model: Callable[..., Model], tmp_path: Path) -> Callable[..., Path]:
    """`make_run(sources, prefix)`: a model, and validation pairs with these sources."""

    def make(sources: list[str], prefix: str = "") -> Path:
        tokenizer = train_tokenizer(["abcdefghijk lmnop"], "character", prefixes=[prefix] if prefix else [])
        model = make_model(vocab_size=len(tokenizer))
        model.generation_config.update(max_length=12, num_beams=3)
        run = tmp_path / "run"
        model.save_pretrained(run)
        tokenizer.save_pretrained(run)
        pairs = [Pair((source,), "abc", "", prefix=prefix) for source in sources]
        encode_corpora([pairs], tokenizer, LengthLimits(99, 99), encoded_file(run, "validation"))
        return run

    return make


MakeRun = Callable[..., Path]


def choose(run: Path, **changes: object) -> None:
    """Have the generation config name a map as the alignment."""
    chosen = {"layer": 1, "head": 2, "row": "output", "source_unit": "word", "target_unit": "word"} | changes
    file = run / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"alignment": chosen}))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Attention, tuple[object, ...]]]:
    """What was drawn."""
    found: list[tuple[Attention, tuple[object, ...]]] = []

    def draw_figure(attention: Attention, file: Path, *place: object) -> Path:
        found.append((attention, place))
        return file

    monkeypatch.setattr(card_picture, "draw_figure", draw_figure)
    return found


def test_the_first_pair_of_a_fitting_length_is_drawn_with_the_chosen_map(
    make_run: MakeRun, drawn: list[tuple[Attention, tuple[object, ...]]]
) -> None:
    run = make_run(SOURCES)
    choose(run, row="input")
    assert card_picture.draw_attention(run) == run / "attention.svg"
    ((attention, place),) = drawn
    assert attention.source == ("klmn",)
    assert attention.target.strip()
    assert place == ("cross", 1, 2, "input")


@pytest.mark.parametrize("translation", [" ", "a" * 60])
def test_a_source_whose_translation_is_empty_or_too_long_to_draw_gives_way_to_the_next(
    translation: str,
    make_run: MakeRun,
    drawn: list[tuple[Attention, tuple[object, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run(SOURCES)

    def attend(translator: object, source: tuple[str, ...], **options: object) -> Attention:
        target = {"klmn": translation, "abcdefghijk lmnop": "abc"}[source[0]]
        return attend_by(translator, source, target, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(card_picture, "attend_by", attend)
    card_picture.draw_attention(run)
    assert [attention.source for attention, _ in drawn] == [("abcdefghijk lmnop",)]


def test_a_source_is_read_with_its_prefix(make_run: MakeRun, drawn: list[tuple[Attention, tuple[object, ...]]]) -> None:
    run = make_run(["klmn"], "<2de>")
    card_picture.draw_attention(run)
    ((attention, _),) = drawn
    (row,) = card_picture.fitting_rows(run)
    assert attention.source_ids == row["source_ids"]
    assert len(attention.source_ids) > len("klmn") + 1


def test_where_no_pair_fits_there_is_no_picture_and_that_is_said(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(["abc", "m" * 21])
    (run / "attention.svg").write_text("of other weights")
    workflow.update_attention(run)
    assert not (run / "attention.svg").exists()
    assert "no validation source has 4 to 20 tokens" in capsys.readouterr().err


def test_what_cannot_be_drawn_fails_no_training_and_leaves_nothing(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(SOURCES)
    before = sorted(run.iterdir())
    (run / "attention.svg").write_text("of other weights")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    workflow.update_attention(run)
    assert sorted(run.iterdir()) == before
    assert "the attention picture could not be drawn (pip install 'hf_vanilla[plots]'?)" in capsys.readouterr().err


def test_a_picture_is_written_whole_or_not_at_all(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="matplotlib comes with the extra plots")

    def savefig(self: object, file: Path, **options: object) -> None:
        file.write_text("half")
        raise OSError("no space left")

    run = make_run(SOURCES)
    before = sorted(run.iterdir())
    monkeypatch.setattr(figures.Figure, "savefig", savefig)
    workflow.update_attention(run)
    assert sorted(run.iterdir()) == before


def test_the_picture_is_of_the_weights_of_now_and_the_same_for_the_same(make_run: MakeRun) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with the extra plots")
    run = make_run(SOURCES)
    choose(run)
    file = run / "attention.svg"
    workflow.update_attention(run)
    first = file.read_bytes()
    assert first.startswith(b"<?xml")
    workflow.update_attention(run)
    assert file.read_bytes() == first
    model = Model.from_pretrained(run)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    model.save_pretrained(run)
    workflow.update_attention(run)
    assert file.read_bytes() != first


def test_averaging_draws_the_picture_anew(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(SOURCES)
    (run / "recipe.yaml").write_text(load_recipe(QUICKSTART).text)
    (run / "prepared.json").write_text("{}")
    (run / "attention.svg").write_text("of other weights")
    monkeypatch.setattr(workflow, "average_checkpoints", lambda *_: [])
    drawn: list[Path] = []
    monkeypatch.setattr(workflow, "draw_attention", lambda run: drawn.append(run) or run)
    workflow.average(run, 2, "last")
    assert drawn == [run]


def test_rows_have_the_names_of_what_they_read_where_the_map_is_read_so(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with the extra plots")
    run = make_run(SOURCES)
    rows: dict[str, list[str]] = {}
    heat_map = figure.heat_map
    for row in ("output", "input"):

        def recorded(pyplot: object, weights: object, names: list[str], *rest: object, row: str = row) -> object:
            rows[row] = names
            return heat_map(pyplot, weights, names, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(figure, "heat_map", recorded)
        choose(run, row=row)
        workflow.update_attention(run)
    start = PreTrainedTokenizerFast.from_pretrained(run).convert_ids_to_tokens(0)
    assert rows["input"] == [start, *rows["output"][:-1]]

"""Links are those of the map that data have chosen, the choice is said, and error rates are those worked by hand."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from hf_vanilla import VanillaConfig
from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.spoken_alignments import spoken_alignments
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference.alignments import Aligner, Alignment, AlignmentSettings, AttentionMap, Row, error_rate
from hf_vanilla.inference.translator import Translator
from hf_vanilla.inspection.align import AlignReport, align, in_words, links_in, read_gold, report_of, soft_line
from hf_vanilla.inspection.align_json import as_dict
from hf_vanilla.inspection.pairs import Pairs, pairs_in

LETTERS = "abcdefghijklmnop"
LAYER, HEAD = 1, 2


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([" ".join(LETTERS)], "word")


def copying(tokenizer: PreTrainedTokenizerFast, row: Row, beside: int = 0) -> Model:
    """
    A model whose decoder layer 2, head 3, looks at the source position that belongs to the target word. Only positions
    differ: the embeddings are 0.

    Args:
        row: Whose attention that is: of the position that predicts the word, or of the next one, which reads it.
        beside: So many source words further.
    """
    width = 32
    config = VanillaConfig(
        vocab_size=len(tokenizer),
        d_model=width,
        d_kv=width,
        d_v=2,
        num_heads=4,
        d_ff=8,
        encoder_layers=1,
        decoder_layers=3,
        norm_first=True,
        position_embedding_type="learned",
        max_position_embeddings=width,
    )
    model = Model(config).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(torch.eye(width))
        for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
            for name, weights in layer.named_parameters():
                if "o_proj" in name or "fc2" in name:
                    weights.zero_()
        attention = model.model.decoder.layers[LAYER].cross_attn
        step = beside - (row == "input")
        for head in range(4):  # all others look at one and the same other position
            columns = slice(head * width, (head + 1) * width)
            attention.k_proj.weight[columns] = torch.eye(width)
            attention.q_proj.weight[columns] = torch.eye(width).roll(step if head == HEAD else step - 3, 0)
    return model


def copies(number: int) -> list[str]:
    random = Random(5)  # noqa: S311
    return [" ".join(random.sample(LETTERS, random.randint(4, 9))) for _ in range(number)]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Pairs of a text and its copy, and their links."""
    data, gold = tmp_path / "copies.tsv", tmp_path / "copies.gold"
    texts = copies(60)
    data.write_text("".join(f"{text}\t{text}\n" for text in texts), encoding="utf-8")
    gold.write_text("".join(" ".join(f"{n}-{n}" for n in range(len(t.split()))) + "\n" for t in texts))
    return data, gold


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> MakeRun:
    def make(row: Row, beside: int = 0, settings: AlignmentSettings | None = None) -> Path:
        model = copying(tokenizer, row, beside)
        if settings is not None:
            model.generation_config.alignment = settings.as_dict() | {"error": 0.25, "pairs": 7}
        model.save_pretrained(tmp_path / "run")
        tokenizer.save_pretrained(tmp_path / "run")
        return tmp_path / "run"

    return make


# --- The copy task ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "does"), [("output", "predicts"), ("input", "reads")])
def test_the_map_of_a_model_that_copies_is_chosen_also_if_it_is_one_row_later(
    row: Row, does: str, make_run: MakeRun, files: tuple[Path, Path]
) -> None:
    data, gold = files
    report = align(make_run(row), data=data, gold=gold)
    assert report.settings == AlignmentSettings(AttentionMap(LAYER, HEAD, row), "word", "word")
    assert report.error is not None
    assert report.error < 0.02
    first, second = report.messages()
    assert f"head 3 of decoder layer 2, at the position that {does} the target token" in first
    assert "60 pairs of" in first
    assert "agreed best with a statistical aligner, on 60 of these pairs" in first
    assert "alignment error rate: 0.0 %, place 1 of 30 maps" in second
    other: Row = "input" if row == "output" else "output"
    assert report.errors is not None
    assert report.errors[AttentionMap(LAYER, HEAD, other)] > 0.5
    for text, alignment in zip(copies(60), report.alignments, strict=True):
        assert str(alignment) == " ".join(f"{n}-{n}" for n in range(len(text.split())))


@pytest.mark.parametrize("beside", [-1, 1])
def test_links_that_are_one_off_are_said_to_be(beside: int, make_run: MakeRun, files: tuple[Path, Path]) -> None:
    settings = AlignmentSettings(AttentionMap(LAYER, HEAD, "output"))
    report = align(make_run("output", beside, settings), data=files[0], gold=files[1])
    assert report.error is not None
    assert report.error > 0.6
    assert report.moves is not None
    assert min(report.moves, key=report.moves.__getitem__) in ((-beside, 0), (0, beside))
    assert "the links seem to be one off: moved by" in report.messages()[-1]


def test_the_row_that_was_chosen_wrongly_is_said_to_be(make_run: MakeRun, files: tuple[Path, Path]) -> None:
    """The map reads the word where the position that predicts it was chosen."""
    settings = AlignmentSettings(AttentionMap(LAYER, HEAD, "output"))
    report = align(make_run("input", settings=settings), data=files[0], gold=files[1])
    text = "\n".join(report.messages())
    assert "the best is head 3 of decoder layer 2, at the position that reads the target token: 0.0 %" in text
    assert "the links seem to be one off" in text
    assert "so generation_config.json says" in text


def test_there_is_one_implementation_with_translate(make_run: MakeRun, files: tuple[Path, Path]) -> None:
    run = make_run("output", settings=AlignmentSettings(AttentionMap(2, None, "input")))
    translator = Translator.from_pretrained(run)
    found = align(run, data=files[0]).alignments
    expected = Aligner(translator.model, translator.tokenizer).align([(text,) for text in copies(60)], copies(60))
    assert [each.links for each in found] == [each.links for each in expected]


def test_a_map_is_never_guessed(make_run: MakeRun, files: tuple[Path, Path], tmp_path: Path) -> None:
    few = tmp_path / "few.tsv"
    few.write_text("a b\ta b\n" * 19, encoding="utf-8")
    run = make_run("output")
    with pytest.raises(InvalidDataError, match="19 pairs are too few to choose an attention map"):
        align(run, data=few)
    with pytest.raises(InvalidDataError, match="give --data FILE"):
        align(run)


# --- Links that are known ---------------------------------------------------------------------------------------------


def test_the_error_rate_with_sure_and_possible_links_is_that_worked_by_hand() -> None:
    """
    Two pairs. A has 4 + 2 links. S has 3 + 1, of which A has 2 + 0; P, the sure ones among them, 5 + 3, of which A has
    3 + 1. So 1 - (2 + 4) / (6 + 4) = 0.4, where taking all links for sure would give 1 - 8 / 14.
    """
    gold = [links_in("0-0 1-1 2-3 1?2 3p3"), links_in("0-1 1?1 0p0")]
    found = [{(0, 0), (1, 1), (1, 2), (2, 2)}, {(1, 0), (1, 1)}]
    assert gold[0].sure == {(0, 0), (1, 1), (2, 3)}
    assert gold[0].possible == {(0, 0), (1, 1), (2, 3), (1, 2), (3, 3)}
    assert error_rate(found, [g.sure for g in gold], [g.possible for g in gold]) == pytest.approx(0.4)
    assert error_rate(found, [g.possible for g in gold], [g.possible for g in gold]) == pytest.approx(1 - 8 / 14)


def pairs_of(*texts: str) -> Pairs:
    return Pairs("pairs", [(text,) for text in texts], list(texts), [[2]] * len(texts), [[2]] * len(texts), [""])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n", "gold:?.* has 1 lines, and there are 2 pairs"),
        ("0-0\n1-1 2:2\n", "gold:2: '2:2' is no link: 1-2 is a sure one, 1.2 or 1p2 a possible one"),
        ("0-0 1-3\n0-0\n", "gold:1: link 1-3 is outside of 3 source words and 3 target words; indexes count from 0"),
        ("\n2?0\n", "gold:2: link 2-0 is outside of 2 source words"),
        ("0-0\n-1-1\n", "gold:2: '-1-1' is no link"),
    ],
)
def test_what_is_wrong_with_known_links_is_said_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "gold"
    file.write_text(text)
    with pytest.raises(InvalidDataError, match=message):
        read_gold(file, pairs_of("a b c", "d e"), AlignmentSettings(AttentionMap(0)))


def test_links_count_the_units_of_the_alignment(tmp_path: Path) -> None:
    file = tmp_path / "gold"
    file.write_text("2-4\n\n")
    settings = AlignmentSettings(AttentionMap(0), "word", "character")
    first, second = read_gold(file, pairs_of("a b c", ""), settings)
    assert (first.sure, second.possible) == ({(2, 4)}, set())


def test_the_links_of_the_quick_start_fit_its_texts(tmp_path: Path) -> None:
    """Words of what is said by characters of what is written, as in the alignments of its models."""
    rows = list(spoken_alignments("test", 10))
    data, file = tmp_path / "data.tsv", tmp_path / "gold"
    data.write_text("".join(f"{spoken}\t{written}\n" for spoken, written, _ in rows), encoding="utf-8")
    lines = [[f"{s}{'-' if (s, t) in gold.sure else '?'}{t}" for s, t in sorted(gold.possible)] for *_, gold in rows]
    file.write_text("".join(" ".join(line) + "\n" for line in lines))
    pairs = Pairs("pairs", [(row[0],) for row in rows], [row[1] for row in rows], [], [], [])
    found = read_gold(file, pairs, AlignmentSettings(AttentionMap(0), "word", "character"))
    assert [(one.sure, one.possible) for one in found] == [(gold.sure, gold.possible) for *_, gold in rows]


# --- What is written --------------------------------------------------------------------------------------------------


def test_a_soft_alignment_has_all_weights_and_what_is_left(tokenizer: PreTrainedTokenizerFast) -> None:
    weights = np.array([[0.25, 0.5], [0.0, 1.0]])
    assert soft_line(Alignment(weights, np.array([0.25, 0]), ())) == "0.2500,0.5000,0.2500 0.0000,1.0000,0.0000"
    model = copying(tokenizer, "output")
    (found,) = Aligner(model, tokenizer, AlignmentSettings(AttentionMap(0))).align([("a b c",)], ["d e"])
    rows = [[float(cell) for cell in row.split(",")] for row in soft_line(found).split(" ")]
    assert [sum(row) for row in rows] == pytest.approx([1, 1], abs=3e-4)
    assert np.array(rows)[:, :3] == pytest.approx(found.weights, abs=5.1e-5)


def test_json_says_the_map_as_people_count_and_the_links_as_pharaoh_does(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    data = tmp_path / "two.tsv"
    data.write_text("a b c\ta b\nd\te\n", encoding="utf-8")
    translator = Translator(copying(tokenizer, "output"), tokenizer)
    settings = AlignmentSettings(AttentionMap(LAYER, HEAD))
    pairs = pairs_in(data, translator)
    report: AlignReport = report_of(translator, pairs, settings, "because", [links_in("0-0 1-1"), links_in("0?0")])
    facts = json.loads(json.dumps(as_dict(report, soft=True)))
    assert facts["map"] == {"layer": 2, "head": 3, "row": "output", "words": in_words(settings.attention)}
    assert facts["alignments"][0]["links"] == [[0, 0], [1, 1]]
    assert facts["alignments"][1]["source"] == ["d"]
    assert np.array(facts["alignments"][0]["weights"]).shape == (2, 3)
    assert facts["error"] == 0
    assert len(facts["errors"]) == 30
    assert "weights" not in as_dict(replace(report, errors=None))["alignments"][0]


@pytest.mark.parametrize(("line", "what"), [("a " * 33 + "\ta", "source"), ("a\t" + "a " * 33, "target")])
def test_pairs_that_would_be_cut_are_refused(
    line: str, what: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """The model has 32 positions; links of a source that was cut would be those of other words."""
    file = tmp_path / "long.tsv"
    file.write_text(f"a\tb\n{line}\n", encoding="utf-8")
    translator = Translator(copying(tokenizer, "output"), tokenizer)
    message = rf"long\.tsv:2: the {what} has 34 tokens, more than the limit of 32: give a shorter one"
    with pytest.raises(InvalidDataError, match=message):
        pairs_in(file, translator)
    assert pairs_in(file, translator, number=1).sources == [("a",)]


@pytest.mark.parametrize("line", ["a b", "a\tb\tc", "\tb", "a\t "])
def test_pairs_need_all_columns(line: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    file = tmp_path / "bad.tsv"
    file.write_text(f"a\tb\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidDataError, match=r"bad\.tsv:2: has not 2 filled columns"):
        pairs_in(file, Translator(copying(tokenizer, "output"), tokenizer))

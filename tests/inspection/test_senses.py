"""Senses are labelled by aligned translations, and told apart by layers that know them, beside both controls."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import PreTrainedTokenizerFast

from hf_vanilla import VanillaConfig
from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference.alignments import Aligner, Alignment, AlignmentSettings, AttentionMap
from hf_vanilla.inference.translator import Translator
from hf_vanilla.inspection.pairs import pairs_in
from hf_vanilla.inspection.senses import (
    Occurrence,
    balanced,
    label_of,
    occurrences_of,
    senses_of,
    separation,
    vectors_of_occurrences,
    with_first_weights,
)
from hf_vanilla.inspection.vectors import states_of
from hf_vanilla_cli import main

WIDTH = 32
SETTINGS = AlignmentSettings(AttentionMap(0, 0, "output"))
FILLERS = list("abcdefghi")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([f"bank geld ufer bankgeld bankufer {' '.join(FILLERS)}"], "word")


def knowing(tokenizer: PreTrainedTokenizerFast) -> Model:
    """
    The encoder's layer reads the word before into each word, so that it knows the sense of "bank", and its embeddings
    do not. Its decoder looks at the same position of the source.
    """
    size = len(tokenizer)
    config = VanillaConfig(
        vocab_size=size,
        d_model=2 * WIDTH,
        d_kv=2 * WIDTH,
        d_v=2 * WIDTH,
        num_heads=1,
        d_ff=8,
        encoder_layers=1,
        decoder_layers=1,
        norm_first=True,
        position_embedding_type="learned",
        max_position_embeddings=WIDTH,
    )
    model = Model(config).eval()
    before = torch.zeros(2 * WIDTH, 2 * WIDTH)
    before[WIDTH:, WIDTH:] = torch.eye(WIDTH).roll(-1, 0)
    here = torch.zeros(2 * WIDTH, 2 * WIDTH)
    here[WIDTH:, WIDTH:] = torch.eye(WIDTH)
    words = torch.zeros(2 * WIDTH, 2 * WIDTH)
    words[:WIDTH, :WIDTH] = torch.eye(WIDTH)
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings.copy_(torch.nn.functional.pad(torch.eye(size, WIDTH), (0, WIDTH)))
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(torch.nn.functional.pad(torch.eye(WIDTH), (WIDTH, 0)) * 4)
            for name, weights in stack.layers.named_parameters():
                if any(part in name for part in ("o_proj", "fc2", "bias")):
                    weights.zero_()
        attention = model.model.encoder.layers[0].self_attn
        attention.q_proj.weight.copy_(before * 9)
        attention.k_proj.weight.copy_(here)
        attention.v_proj.weight.copy_(words)
        attention.o_proj.weight.copy_(torch.eye(2 * WIDTH).roll(3, 0) * 3)
        cross = model.model.decoder.layers[0].cross_attn
        cross.q_proj.weight.copy_(here * 9)
        cross.k_proj.weight.copy_(here)
    return model


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Behind "geld" "bank" gives "bankgeld", behind "ufer" "UFERbank"; other words and places tell nothing."""
    file = tmp_path / "pairs.tsv"
    random = np.random.default_rng(4)
    lines = []
    for number in range(48):
        sense = ("geld", "ufer")[number % 2]
        first, last = (random.choice(FILLERS, random.integers(1, 4)).tolist() for _ in range(2))
        source = [*first, sense, "bank", *last]
        target = [*first, sense, {"geld": "bankgeld", "ufer": "UFERbank,"}[sense], *last]
        lines.append(f"{' '.join(source)}\t{' '.join(target)}\n")
    file.write_text("".join(lines), encoding="utf-8")
    return file


@pytest.fixture
def sense_run(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    model = knowing(tokenizer)
    model.generation_config.alignment = SETTINGS.as_dict() | {"error": 0.1, "pairs": 9}
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    return tmp_path / "run"


def test_a_layer_that_reads_the_sense_is_found_and_the_controls_are_below(sense_run: Path, data: Path) -> None:
    found = senses_of(sense_run, "bank", data=data)
    assert found.labels == {"bank": 24, "ufer": 24}
    assert found.compared == 24
    assert found.trained[1] > 0.95
    assert found.trained[0] < 0.75
    assert found.shuffled.mean(0) == pytest.approx([0.5, 0.5], abs=0.12)
    assert found.untrained[1] < found.trained[1] - 0.1
    assert found.chance == 0.5


def test_occurrences_have_the_label_of_their_alignment(tokenizer: PreTrainedTokenizerFast, data: Path) -> None:
    translator = Translator(knowing(tokenizer), tokenizer)
    pairs = pairs_in(data, translator)
    found = occurrences_of(translator, pairs, SETTINGS, "Bank")
    assert len(found) == 48
    for each in found:
        words = pairs.sources[each.pair][0].split()
        assert words[each.unit] == "bank"
        assert each.label == {"geld": "bank", "ufer": "ufer"}[words[each.unit - 1]]


def test_labels_follow_the_links_and_vectors_the_tokens(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With links that cross: the first word of the source gives the last of the target."""
    file = tmp_path / "one.tsv"
    file.write_text("a bank b c\tgeld d e ufer\n", encoding="utf-8")
    translator = Translator(knowing(tokenizer), tokenizer)
    pairs = pairs_in(file, translator)
    crossed = Alignment(np.zeros((4, 4)), np.zeros(4), tuple((3 - target, target) for target in range(4)))
    monkeypatch.setattr(Aligner, "align", lambda *texts, **ids: [crossed])
    assert occurrences_of(translator, pairs, SETTINGS, "a") == [Occurrence(0, 0, "ufer")]
    assert occurrences_of(translator, pairs, SETTINGS, "c") == [Occurrence(0, 3, "geld")]
    ((_, states),) = states_of(translator.model, pairs.source_ids)
    found = vectors_of_occurrences(translator.model, translator, pairs, SETTINGS, [Occurrence(0, 1, "e")])
    assert found[:, 0] == pytest.approx(states[:, 1], abs=1e-6)


def test_labels_are_the_beginning_of_a_word_or_all_its_characters() -> None:
    characters = AlignmentSettings(AttentionMap(0), "word", "character")
    assert label_of("Das „Spielfeld“, ja", [1, 2], SETTINGS) == "spie"
    assert label_of("Das , ja", [1], SETTINGS) == ","
    assert label_of("22:30", [0, 1], characters) == "22"
    assert label_of("22:30", [], characters) == label_of("a b", [], SETTINGS) == ""


def test_as_many_of_each_label_are_compared() -> None:
    found = [Occurrence(n, 0, label) for n, label in enumerate("x" * 90 + "y" * 11 + "z" * 9)]
    chosen, counts = balanced(found, "w", "here")
    assert counts == {"x": 90, "y": 11}
    assert [each.label for each in chosen] == ["x"] * 11 + ["y"] * 11
    assert len({each.pair for each in chosen}) == 22
    with pytest.raises(InvalidDataError, match=r"'w' has not two translations .* in here \(translations: x 90, z 9\)"):
        balanced([each for each in found if each.label != "y"], "w", "here")


def test_separation_by_hand() -> None:
    """The nearest of 0 is 1, with its label; of 1 it is 0; of 2 it is 1, with another; of 3 it is 2, with its label."""
    vectors = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.5], [0.0, 1.0]])
    labels = np.array([0, 0, 1, 1])
    assert separation(vectors, labels, np.arange(4)) == pytest.approx(3 / 4)
    assert separation(vectors, labels, np.array([0, 0, 2, 3])) == pytest.approx(1 / 4)
    same = np.ones((4, 2))  # all are as near: as many of the three others have the label as chance says
    assert separation(same, labels, np.arange(4)) == pytest.approx(1 / 3)


def test_first_weights_are_new_and_the_same_each_time(tokenizer: PreTrainedTokenizerFast) -> None:
    model = knowing(tokenizer).double()
    state = torch.get_rng_state()
    one = with_first_weights(model)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    two = with_first_weights(model)
    for (name, first), second in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(first, second)
        assert first.dtype == torch.float64
        assert name.endswith(("bias", "norm.weight")) or not torch.equal(first, model.get_parameter(name))


def test_the_command_gives_table_json_and_figure(sense_run: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with the extra plots")
    picture = tmp_path / "bank.svg"
    arguments = ["inspect", str(sense_run), "--senses", "bank", "--data", str(data)]
    table = CliRunner().invoke(main, [*arguments, "--figure", str(picture)])
    assert table.exit_code == 0, table.output
    assert "bank: bank 24, ufer 24 times in 48 pairs" in table.stdout
    assert "</svg>" in picture.read_text(encoding="utf-8")
    facts = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    report = senses_of(sense_run, "bank", data=data)
    assert facts == json.loads(json.dumps(report.as_dict()))
    assert [each["layer"] for each in facts["layers"]] == ["embeddings", 1]
    missing = CliRunner().invoke(main, [*arguments[:3], "money", *arguments[4:]])
    assert "'money' has not two translations" in missing.output
    assert "(translations: none)" in missing.output

"""The command on heads: what it finds over a run's own pairs is what single parts find, as table, JSON and picture."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.dataset import LengthLimits, encode_corpora
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.evaluation.metrics import report
from hf_vanilla.inference.scoring import start_token
from hf_vanilla.inference.translator import Translator
from hf_vanilla.inspection import heads
from hf_vanilla.inspection.heads import curves_of, heads_report
from hf_vanilla.inspection.heads_table import NO_ROLE, as_table
from hf_vanilla.inspection.importance import gradients_in_layers, importance_of_heads, losses
from hf_vanilla.inspection.masking import Head, heads_of
from hf_vanilla.inspection.pairs import pairs_for, training_counts
from hf_vanilla.inspection.reading import Maps, maps_of
from hf_vanilla.inspection.redundancy import Divergences
from hf_vanilla.inspection.statistics import HeadStatistics, Traits
from hf_vanilla.inspection.vectors import texts_for
from hf_vanilla_cli import main

TEXTS = [("few words", "A few"), ("ABE, SAW.", "LEX"), ("cat", "XYBeaL"), ("s a l", "Be."), ("few few", "L")]
LIMITS = LengthLimits(50, 50)


def pairs(texts: list[tuple[str, str]], prefix: str = "") -> list[Pair]:
    return [Pair((source,), target, "here", prefix) for source, target in texts]


@pytest.fixture
def run_with_data(run: Path) -> Path:
    """A run directory that has its training and validation pairs."""
    tokenizer = Translator.from_pretrained(run).tokenizer
    for split, texts in (("train", TEXTS * 2), ("validation", TEXTS)):
        encode_corpora([pairs(texts)], tokenizer, LIMITS, run / "data" / f"{split}.arrow")
    return run


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


# --- The report -------------------------------------------------------------------------------------------------------


def test_the_report_is_made_of_the_parts_over_the_runs_own_validation(run_with_data: Path) -> None:
    found, translator = heads_report(run_with_data), Translator.from_pretrained(run_with_data)
    model = translator.model
    source, target = translator.encode_batch([s for s, _ in TEXTS]), translator.encoder.targets([t for _, t in TEXTS])
    assert found.pairs == "5 of the 5 validation pairs"
    assert found.loss == pytest.approx(losses(model, source, target).mean(), abs=1e-6)
    assert list(found.importance) == heads_of(model)
    counts = np.bincount([i for ids in source * 2 for i in ids], minlength=model.config.vocab_size)
    others = np.bincount([i for ids in target * 2 for i in ids], minlength=model.config.vocab_size)
    assert [each.tolist() for each in training_counts(run_with_data, model) or ()] == [counts.tolist(), others.tolist()]
    statistics = HeadStatistics(Traits(translator.tokenizer, start_token(model), (counts, others)))
    for maps, one, other in zip(maps_of(model, source, target), source, target, strict=True):
        statistics.add(maps, one, other)
    for head in (Head("encoder", 1, 2), Head("decoder", 2, 0), Head("cross", 0, 3)):
        assert found.of(head) == pytest.approx(
            {name: values[head.layer, head.head] for name, values in statistics.of(head.kind).items()}, nan_ok=True
        )
    by_hand = importance_of_heads(model, source, target)
    assert [vars(one) for one in found.importance.values()] == [
        pytest.approx(vars(by_hand[head]), abs=1e-6) for head in by_hand
    ]


def test_pairs_are_spread_over_the_validation_or_come_from_a_file(run_with_data: Path, tmp_path: Path) -> None:
    translator = Translator.from_pretrained(run_with_data)
    assert pairs_for(run_with_data, translator, number=2).sources == [("few words",), ("few few",)]
    for number, expected in ((1, 1), (3, 3), (4, 4), (5, 5), (6, 5), (None, 5)):
        spread = pairs_for(run_with_data, translator, number=number)
        assert len(set(spread.sources)) == len(spread) == expected
        assert spread.name == f"{expected} of the 5 validation pairs"
    file = tmp_path / "pairs.tsv"
    file.write_text("cat\tX\nsaw\tL\nfew\tB\n", encoding="utf-8")
    chosen = pairs_for(run_with_data, translator, file, number=2)
    assert (chosen.name, chosen.targets) == (f"2 pairs of {file}", ["X", "L"])
    assert chosen.source_ids == translator.encode_batch(["cat", "saw"])
    before = pairs_for(run_with_data, translator, file, prefix="few ")
    assert before.source_ids == translator.encode_batch(["few cat", "few saw", "few few"])
    assert before.prefixes == ["few "] * 3


def test_a_prefix_of_the_training_is_read_again(run: Path) -> None:
    translator = Translator.from_pretrained(run)
    encode_corpora([pairs(TEXTS[:2], "few ")], translator.tokenizer, LIMITS, run / "data" / "validation.arrow")
    chosen = pairs_for(run, translator)
    assert chosen.prefixes == ["few ", "few "]
    assert chosen.source_ids == translator.encode_batch([s for s, _ in TEXTS[:2]], "few ")


def test_only_validation_pairs_with_the_prefix_are_read(run: Path) -> None:
    translator, file = Translator.from_pretrained(run), run / "data" / "validation.arrow"
    both = [*pairs(TEXTS[:2], "few "), *pairs(TEXTS[2:], "the "), *pairs(TEXTS[:1])]
    encode_corpora([both], translator.tokenizer, LIMITS, file)
    assert pairs_for(run, translator).prefixes == ["few "] * 2 + ["the "] * 3 + [""]
    chosen = pairs_for(run, translator, prefix="the ", number=2)
    assert chosen.sources == [("cat",), ("few few",)]
    assert chosen.prefixes == ["the ", "the "]
    assert chosen.name == "2 of the 3 validation pairs with the prefix 'the '"
    assert texts_for(run, translator, prefix="few ").sources == [(source,) for source, _ in TEXTS[:2]]
    message = "prefix 'a ': no validation pair of .* has it; their prefixes: 'few ', 'the '$"
    with pytest.raises(InvalidDataError, match=message):
        pairs_for(run, translator, prefix="a ")


def test_the_pruning_curve_goes_from_the_whole_model_to_one_without_heads(run_with_data: Path) -> None:
    translator = Translator.from_pretrained(run_with_data)
    before = {name: weights.clone() for name, weights in translator.model.state_dict().items()}
    chosen = pairs_for(run_with_data, translator)
    importance = importance_of_heads(translator.model, chosen.source_ids, chosen.target_ids)
    curves = curves_of(translator, chosen, importance, {})
    assert [point.heads_left for point in curves.points] == [32, 29, 26, 22, 19, 16, 13, 10, 6, 3, 0]
    assert set(curves.order) == set(importance)
    relative = gradients_in_layers(importance)
    gradients = [relative[head] for head in curves.order]
    assert gradients == sorted(gradients)
    assert curves.points[0].loss == curves.reverse[0].loss
    assert curves.points[-1].loss == curves.reverse[-1].loss
    assert all(set(point.scores) == {"bleu", "exact_match"} for point in curves.points)
    assert all(torch.equal(before[name], weights) for name, weights in translator.model.state_dict().items())
    by_hand = translator.model
    with torch.no_grad():
        for name, weights in by_hand.named_parameters():
            if "o_proj.weight" in name:
                weights.zero_()
    expected = losses(by_hand, chosen.source_ids, chosen.target_ids).mean()
    assert curves.points[-1].loss == pytest.approx(expected, abs=1e-6)


def test_bleu_has_the_tokenizer_of_the_runs_own_scores(run_with_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translations, recipe = ["A few", "A few A few"], run_with_data / "recipe.yaml"
    monkeypatch.setattr(heads, "translate_each", lambda *given: translations)
    recipe.write_text("training: {bleu_tokenize: char}\n", encoding="utf-8")
    curves = heads_report(run_with_data, number=2, prune=True).curves
    assert curves is not None
    expected = {name: report(translations, ["A few", "L"], ["bleu"], tokenize=name)["bleu"] for name in ("13a", "char")}
    assert expected["13a"] != expected["char"]
    assert {point.scores["bleu"] for point in curves.points} == {expected["char"]}
    recipe.write_text("training: {bleu_tokenize: 13b}\n", encoding="utf-8")
    with pytest.raises(InvalidDataError, match=r"recipe\.yaml: training\.bleu_tokenize: .*13b"):
        heads_report(run_with_data, number=2, prune=True)


# --- Redundancy -------------------------------------------------------------------------------------------------------


def test_heads_that_attend_alike_have_no_divergence_and_others_one_bit() -> None:
    """The rows of head 2 are half as head 0's, half elsewhere: H(3/4, 1/4) - H(1/2, 1/2) / 2 bits."""
    first = [[1, 0, 0], [0, 1, 0]]
    other = [[0, 0, 1], [1, 0, 0]]
    half = [[0.5, 0.5, 0], [0.5, 0.5, 0]]
    maps = np.array([[first, other], [first, half]], np.float32)
    divergences = Divergences()
    divergences.add(Maps(maps, maps[:0], maps[:0]))
    divergences.add(Maps(maps, maps[:0], maps[:0]))
    found = divergences.of("encoder")
    expected = -0.75 * np.log2(0.75) - 0.25 * np.log2(0.25) - 0.5
    assert found == pytest.approx(found.T)
    assert found[0] == pytest.approx([0, 1, 0, expected], abs=1e-6)
    nearest = divergences.nearest()
    assert nearest[Head("encoder", 0, 0)] == (Head("encoder", 1, 0), 0)
    assert nearest[Head("encoder", 1, 1)][0] == Head("encoder", 0, 0)
    assert len(nearest) == 4


# --- What is written --------------------------------------------------------------------------------------------------


def test_the_table_has_a_line_for_each_head_counted_from_1(run_with_data: Path) -> None:
    found = heads_report(run_with_data)
    lines = as_table(found).splitlines()
    heads = [line for line in lines if line.startswith(("encoder layer", "decoder layer", "cross layer"))]
    assert len(heads) == 32
    assert heads[0].startswith("encoder layer 1 head 1 ")
    assert heads[-1].startswith("cross layer 3 head 4 ")
    for head, line in zip(found.importance, heads, strict=True):
        roles = ", ".join(role.name for role in found.roles(head))
        assert line.endswith(roles or NO_ROLE)
        assert f"{found.importance[head].masking:+.4f}" in line
    assert any(line.startswith("rank correlation (Spearman)") for line in lines)


CONLLU = "1\tfew\t_\t_\t_\t_\t2\tamod\t_\t_\n2\twords\t_\t_\t_\t_\t0\troot\t_\t_\n"


def test_the_command_writes_json_and_a_picture_and_has_all_parts(run_with_data: Path, tmp_path: Path) -> None:
    conllu = tmp_path / "one.conllu"
    conllu.write_text(CONLLU, encoding="utf-8")
    figure, output = tmp_path / "heads.svg", tmp_path / "heads.json"
    options = ("--conllu", conllu, "--prune", "--pairs", "2", "--figure", figure, "--json", "--output", output)
    result = command(run_with_data, "--heads", *options)
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert len(facts["heads"]) == 32
    last = facts["heads"][-1]
    assert (last["kind"], last["layer"], last["head"], last["relations"]) == ("cross", 3, 4, [])
    assert [(each["name"], each["direction"], each["count"]) for each in facts["relations"]] == [
        ("amod", "from its head", 1),
        ("amod", "to its head", 1),
    ]
    assert len(facts["pruning"]["least_important_first"]) == 11
    assert "NaN" not in output.read_text(encoding="utf-8")
    picture = figure.read_text(encoding="utf-8")
    assert picture.startswith("<?xml")
    assert not list(tmp_path.glob("*partial*"))


def test_the_table_is_printed_with_relations(run_with_data: Path, tmp_path: Path) -> None:
    conllu = tmp_path / "one.conllu"
    conllu.write_text(CONLLU, encoding="utf-8")
    result = command(run_with_data, "--heads", "--conllu", conllu, "--pairs", "2")
    assert result.exit_code == 0, result.output
    assert "amod to its head" in result.output
    assert "2 of the 5 validation pairs" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--heads", "--gold", "x"], "--gold cannot be used with --heads"),
        (["--align", "--prune"], "--prune cannot be used with --align"),
        (["--heads", "--align"], "--align cannot be used with --heads"),
        (["a text", "--heads"], "--heads looks at many pairs"),
        (["--heads", "--figure", "x.gif"], "choose a name that ends in .svg, .png, .pdf"),
        (["--heads", "--figure", "nowhere/x.svg"], "there is no folder nowhere"),
        (["--heads", "--conllu", "nowhere.conllu"], "nowhere.conllu: cannot be read"),
        (["--heads"], "give --data FILE, a source, a tab and a target in each line"),
        (["--align"], "give --data FILE, a source, a tab and a target in each line"),
    ],
)
def test_what_cannot_be_done_is_said(options: list[str], message: str, run: Path) -> None:
    result = command(run, *options)
    assert result.exit_code > 0
    assert message in result.output


def test_alignments_are_written_line_by_line(run_with_data: Path, tmp_path: Path) -> None:
    config = json.loads((run_with_data / "generation_config.json").read_text(encoding="utf-8"))
    map_of_run = {"layer": 1, "head": None, "row": "input", "source_unit": "word", "target_unit": "character"}
    config["alignment"] = map_of_run | {"error": 0.5, "pairs": 9}
    (run_with_data / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    output = tmp_path / "links"
    result = command(run_with_data, "--align", "--output", output)
    assert result.exit_code == 0, result.output
    assert "the mean of the heads of decoder layer 2, at the position that reads the target token" in result.stderr
    lines = output.read_text(encoding="utf-8").splitlines()
    assert [[link.split("-")[1] for link in line.split()] for line in lines] == [
        [str(place) for place, letter in enumerate(target) if letter != " "] for _, target in TEXTS
    ]
    soft = command(run_with_data, "--align", "--soft").stdout.splitlines()
    assert [len(line.split()) for line in soft] == [len(target) for _, target in TEXTS]
    facts = json.loads(command(run_with_data, "--align", "--json").stdout)
    assert facts["map"]["head"] == "mean"
    assert [each["target"] for each in facts["alignments"]] == [list(target) for _, target in TEXTS]


def test_the_data_of_the_run_are_only_read(run_with_data: Path) -> None:
    before = {path: path.read_bytes() for path in run_with_data.rglob("*") if path.is_file()}
    assert command(run_with_data, "--heads", "--pairs", "2").exit_code == 0
    assert {path: path.read_bytes() for path in run_with_data.rglob("*") if path.is_file()} == before
    assert datasets.Dataset.from_file(str(run_with_data / "data" / "train.arrow")).num_rows == 10

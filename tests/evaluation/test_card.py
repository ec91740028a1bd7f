"""A model card says what was measured, in front matter that the Hub reads, and no text breaks out of its place."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import save_file

from hf_vanilla.evaluation.card import cell, write_card
from hf_vanilla.evaluation.measurements import Measurement, Sample, add_to_report, read_report, weights_of
from hf_vanilla.evaluation.significance import Confidence
from hf_vanilla.files import sha256_of

SCORES = {"bleu": 41.5, "bleu_precision_1": 70.0, "bleu_signature": "nrefs:1|v:2.6", "chrf": 60.25}
HOSTILE = "a | b <script>alert(1)</script> `x`\n---\n# title [l](u) *b* ```"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "my-run"
    folder.mkdir()
    recipe = {"data": {"source_language": "en", "target_language": "de"}, "model": {"d_model": 16}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    history = [{"step": 10, "loss": 5.0}, {"step": 10, "eval_loss": 4.0, "eval_bleu": 1.5, "eval_runtime": 3.0}]
    (folder / "history.json").write_text(json.dumps(history))
    save_file({"a": torch.zeros(30, 40), "b": torch.zeros(7)}, folder / "model.safetensors")
    return folder


def measured(run: Path, source: tuple[str, ...], output: str, reference: str) -> str:
    """The card of a run that was measured, with a sample."""
    add_to_report(run, "test", Measurement(SCORES, weights_of(run), [Sample(source, output, reference)]))
    write_card(run)
    return (run / "README.md").read_text()


def test_the_card_says_what_was_measured_and_how(run: Path) -> None:
    measured(run, ("a dog",), "ein Hund", "ein Hund")
    card = ModelCard.load(run / "README.md")
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert results == {"bleu": 41.5, "chrf": 60.25}
    assert card.data.language == ["en", "de"]
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "translation")
    for line in ("(1,207 parameters)", "| test | bleu | 41.50 |", "`nrefs:1|v:2.6`", "| a dog | ein Hund | ein Hund |"):
        assert line in card.text
    assert "| 10 | 5.00 | loss 4.00, bleu 1.50 |" in card.text
    assert "d_model: 16" in card.text
    assert sha256_of(run / "model.safetensors") in card.text
    assert not list(run.glob("*.partial"))


def test_the_card_has_no_scores_and_samples_of_other_weights(run: Path) -> None:
    before = measured(run, ("walk", "PAST"), "walked", "walked")
    (run / "model.safetensors").rename(run / "old")
    save_file({"a": torch.ones(30, 40), "b": torch.zeros(7)}, run / "model.safetensors")
    write_card(run)
    card = ModelCard.load(run / "README.md")
    assert not card.data.eval_results
    assert "41.50" not in card.text
    assert "walked" not in card.text
    assert "The weights have not been measured; `hf-vanilla evaluate my-run` does it." in card.text
    assert '.translate([["walk", "PAST"]])' in card.text  # the model still takes two parts
    add_to_report(run, "other", Measurement({"chrf": 7.5}, weights_of(run)))
    write_card(run)
    assert [result.dataset_split for result in ModelCard.load(run / "README.md").data.eval_results] == ["other"]
    (run / "old").replace(run / "model.safetensors")  # the scores of these weights are known
    write_card(run)
    assert (run / "README.md").read_text() == before


def test_the_card_shows_confidence_intervals_where_they_are_known(run: Path) -> None:
    confidence = {"bleu": Confidence(41.4, 0.876)}
    add_to_report(run, "test", Measurement(SCORES, weights_of(run), confidence=confidence, sentences=1000))
    write_card(run)
    card = ModelCard.load(run / "README.md")
    assert "| test | bleu | 41.50 ± 0.88 |" in card.text
    assert "| test | chrf | 60.25 |" in card.text
    assert {result.metric_type: result.metric_value for result in card.data.eval_results}["bleu"] == 41.5


@pytest.mark.parametrize(
    "report", ['{"test": {"bleu": 41.5}}', "{", "[]", '{"test": {"scores": {"bleu": 41.5}}}', None]
)
def test_a_report_that_names_no_weights_says_nothing_about_them(run: Path, report: str | None) -> None:
    if report is not None:
        (run / "report.json").write_text(report)
    write_card(run)
    card = ModelCard.load(run / "README.md")
    assert not card.data.eval_results
    assert "The weights have not been measured" in card.text
    add_to_report(run, "test", Measurement(SCORES, weights_of(run)))
    assert read_report(run)["test"] == Measurement(SCORES, weights_of(run))


def test_text_stays_in_its_cell(run: Path) -> None:
    text = measured(run, (HOSTILE,), HOSTILE, "")
    assert text.count("```") == 6  # three blocks of code, in which the text is only text
    lines = re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines()
    (row,) = [line for line in lines if "script" in line and line.startswith("|")]
    assert row.count(" | ") == 2
    assert "<script>" not in "\n".join(lines)
    assert "\\`x\\`" in row
    assert [line for line in lines if line == "---"] == ["---", "---"]  # of the front matter alone


def test_a_cell_shows_what_was_written() -> None:
    assert cell("a dog") == "a dog"
    assert cell("a\nb") == "a b"
    assert cell("") == " "
    assert cell("<b> & | #") == "&#60;b&#62; &#38; &#124; \\#"


def test_the_code_of_the_card_has_the_very_source(run: Path) -> None:
    source = "🎉 ü \u2028 \x85 \u0301"
    code = measured(run, (source,), "x", "y").split("```python\n")[1].split("```")[0]
    constants = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    assert source in constants


def test_the_code_of_the_card_is_python_whatever_the_text(run: Path) -> None:
    code = measured(run, ('say "hi" \\ \n',), "x", "y").split("```python\n")[1].split("```")[0]
    compile(code, "card", "exec")
    assert r"say \"hi\" \\ \n" in code


def test_the_code_of_the_card_joins_several_columns_as_training_does(run: Path) -> None:
    text = measured(run, ("walk", "PAST"), "walked", "walked")
    code = text.split("```python\n")[1].split("```")[0]
    compile(code, "card", "exec")
    assert '.translate([["walk", "PAST"]])' in code
    assert "| walk &#124; PAST | walked | walked |" in text


@pytest.mark.parametrize(
    ("settings", "is_plain"),
    [
        ({}, True),
        ({"columns": {"source": [None], "target": None}, "prefixes": [""]}, True),
        ({"columns": {"source": [None, None], "target": None}}, False),
        ({"columns": {"source": [";"], "target": None}}, False),
        ({"columns": {"source": [None], "target": " "}}, False),
        ({"prefixes": ["<2de>"]}, False),
    ],
)
def test_the_code_of_the_card_is_of_transformers_alone_where_that_is_enough(
    settings: dict[str, object], is_plain: bool, run: Path
) -> None:
    (run / "tokenizer_config.json").write_text(json.dumps(settings))
    text = measured(run, ("walk",), "walked", "walked")
    assert ("AutoTokenizer" in text, "pipeline(" in text, "Translator" in text) == (is_plain, is_plain, not is_plain)


def started_from(run: Path, **origin: object) -> ModelCard:
    """The card of a run that recorded where it came from."""
    (run / "prepared.json").write_text(json.dumps({"origin": {"name": "our-run", "is_on_hub": False} | origin}))
    write_card(run)
    return ModelCard.load(run / "README.md")


def test_the_card_names_the_model_on_the_hub_that_training_began_with(run: Path) -> None:
    card = started_from(run, name="some/model", is_on_hub=True, checksums={"weights": "ab12", "tokenizer": "cd34"})
    assert card.data.base_model == "some/model"
    assert "](https://huggingface.co/some/model) (SHA-256 of its `model.safetensors`: `ab12`)" in card.text
    assert "from scratch" not in card.text


def test_the_card_names_a_model_of_this_machine_by_its_weights_and_not_by_its_place(run: Path) -> None:
    place = "/home/somebody/our-run"
    recipe = {
        "data": {"folder": "/data/private/texts", "test": {"file": "~/somebody/t.tsv"}},
        "model": {"from": place},
        "training": {"max_steps": 5},
    }
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    card = started_from(run, checksums={"weights": "ab12", "tokenizer": "cd34"})
    assert card.data.base_model is None
    assert (
        "further by hf_vanilla from the weights of **our\\-run** (SHA-256 of its `model.safetensors`: `ab12`)"
        in card.text
    )
    written = (run / "README.md").read_text()
    assert "somebody" not in written
    assert "private" not in written
    assert "from: our-run" in written
    assert "max_steps: 5" in written


def test_the_card_says_whose_tokenizer_was_taken(run: Path) -> None:
    card = started_from(run, name="some/tokenizer", is_on_hub=True, checksums={"tokenizer": "cd34"})
    assert card.data.base_model is None
    assert "trained from scratch by hf_vanilla with the tokenizer of [some/tokenizer](https://" in card.text


def test_the_card_of_a_run_from_nothing_says_so(run: Path) -> None:
    (run / "prepared.json").write_text('{"origin": null}')
    write_card(run)
    assert "from en to de, trained from scratch by hf_vanilla." in (run / "README.md").read_text()

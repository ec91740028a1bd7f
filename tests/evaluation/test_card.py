"""A model card says what was measured, in front matter that the Hub reads, and no text breaks out of its place."""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import save_file

from hf_vanilla.evaluation.card import cell, write_card

HOSTILE = "a | b <script>alert(1)</script> `x`\n---\n# title [l](u) *b* ```"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "my-run"
    folder.mkdir()
    recipe = {"data": {"source_language": "en", "target_language": "de"}, "model": {"d_model": 16}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    scores = {"bleu": 41.5, "bleu_precision_1": 70.0, "bleu_signature": "nrefs:1|v:2.6", "chrf": 60.25}
    (folder / "report.json").write_text(json.dumps({"test": scores}))
    history = [{"step": 10, "loss": 5.0}, {"step": 10, "eval_loss": 4.0, "eval_bleu": 1.5, "eval_runtime": 3.0}]
    (folder / "history.json").write_text(json.dumps(history))
    save_file({"a": torch.zeros(30, 40), "b": torch.zeros(7)}, folder / "model.safetensors")
    return folder


def test_the_card_says_what_was_measured_and_how(run: Path) -> None:
    write_card(run, [(("a dog",), "ein Hund", "ein Hund")])
    card = ModelCard.load(run / "README.md")
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert results == {"bleu": 41.5, "chrf": 60.25}
    assert card.data.language == ["en", "de"]
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "translation")
    for line in ("(1,207 parameters)", "| test | bleu | 41.50 |", "`nrefs:1|v:2.6`", "| a dog | ein Hund | ein Hund |"):
        assert line in card.text
    assert "| 10 | 5.00 | loss 4.00, bleu 1.50 |" in card.text
    assert "d_model: 16" in card.text
    assert not list(run.glob("*.partial"))


def test_text_stays_in_its_cell(run: Path) -> None:
    write_card(run, [((HOSTILE,), HOSTILE, "")])
    text = (run / "README.md").read_text()
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


def test_the_code_of_the_card_is_python_whatever_the_text(run: Path) -> None:
    write_card(run, [(('say "hi" \\ \n',), "x", "y")])
    code = (run / "README.md").read_text().split("```python\n")[1].split("```")[0]
    compile(code, "card", "exec")
    assert r"say \"hi\" \\ \n" in code


def test_the_code_of_the_card_joins_several_columns_as_training_does(run: Path) -> None:
    write_card(run, [(("walk", "PAST"), "walked", "walked")])
    text = (run / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    compile(code, "card", "exec")
    assert '.translate([["walk", "PAST"]])' in code
    assert "| walk &#124; PAST | walked | walked |" in text

"""Exports to Marian, Pegasus and Blenderbot, tried where this package cannot be imported."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.to_transformers import export

MakeRun = Callable[..., tuple[Path, Model]]
AnswersWithoutUs = Callable[..., list[dict[str, torch.Tensor]]]
LOADED = """
import torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
given = load_file("given.safetensors")
mask = (given["source"] != 1).long()
for folder in sorted(Path().glob("exported*")):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).double().eval()
    with torch.no_grad():
        logits = model(given["source"], mask, given["target"]).logits
        found = model.generate(given["source"], attention_mask=mask)
    text = torch.tensor(AutoTokenizer.from_pretrained(folder)("abc kl")["input_ids"])
    save_file({"logits": logits, "found": found.contiguous(), "text": text}, f"answer_of_{folder}")
"""
CASES: list[tuple[str, dict[str, object]]] = [
    ("marian", {}),
    ("marian", {"tie_word_embeddings": False, "activation_function": "relu"}),
    ("pegasus", {"norm_first": True}),
    ("pegasus", {"norm_first": True, "tie_word_embeddings": False}),
    ("blenderbot", {"norm_first": True, "position_embedding_type": "learned", "max_position_embeddings": 32}),
]


def test_logits_and_searches_are_equal_without_this_package(
    make_run: MakeRun,
    answers_without_us: AnswersWithoutUs,
    ids: tuple[torch.Tensor, torch.Tensor],
    tmp_path: Path,
) -> None:
    source, target = ids
    runs, models = zip(*(make_run(f"run{number}", **case) for number, (_, case) in enumerate(CASES)), strict=True)
    answers = answers_without_us(export, runs, LOADED)
    for number, (model_type, _) in enumerate(CASES):
        folder = tmp_path / f"exported{number}"
        assert AutoConfig.from_pretrained(folder).model_type == model_type
        assert not list(folder.glob("*.py"))
    mask = (source != 1).long()
    for model, answer in zip(models, answers, strict=True):
        with torch.no_grad():
            expected = model(source, mask, target).logits
        torch.testing.assert_close(answer["logits"], expected, rtol=0, atol=1e-10)
        assert answer["found"].tolist() == model.generate(source, attention_mask=mask).tolist()
        assert answer["text"][-1] == 2


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("learned positions without norm_first", {"position_embedding_type": "learned"}),
        ("layer_norm_eps 1e-06", {"layer_norm_eps": 1e-6}),
        ("d_kv 3", {"d_kv": 3}),
        ("d_v 5", {"d_v": 5}),
    ],
)
def test_what_no_class_computes_is_refused_by_name(
    make_run: MakeRun, tmp_path: Path, what: str, changes: dict[str, object]
) -> None:
    run, _ = make_run(**changes)
    (tmp_path / "exported").mkdir()
    with pytest.raises(InteropError, match=what):
        export(run, tmp_path / "exported")
    assert not list((tmp_path / "exported").iterdir())


GNMT = {"length_penalty": 0.6, "length_penalty_type": "gnmt"}
EXACT: list[dict[str, object]] = [
    {"num_beams": 1, **GNMT},
    {"num_beams": 3, "length_penalty": 0.0, "length_penalty_type": "gnmt"},
    {"num_beams": 3, "length_penalty": 0.7, "max_length": 6, "max_length_beyond_source": 5},
]


def search_by(model: Model, run: Path, search: dict[str, object]) -> None:
    """As somebody edits the file: `update` leaves out our keys, and `save_pretrained` refuses some that have no use."""
    for key, value in search.items():
        setattr(model.generation_config, key, value)
    file = run / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | search))


def test_a_search_of_ours_that_another_config_finds_is_exported_with_that(
    make_run: MakeRun,
    answers_without_us: AnswersWithoutUs,
    ids: tuple[torch.Tensor, torch.Tensor],
    tmp_path: Path,
) -> None:
    source, _ = ids
    runs, models = zip(*(make_run(f"run{number}") for number in range(len(EXACT))), strict=True)
    for run, model, search in zip(runs, models, EXACT, strict=True):
        search_by(model, run, search)
    answers = answers_without_us(export, runs, LOADED)
    for number, (model, answer) in enumerate(zip(models, answers, strict=True)):
        search = json.loads((tmp_path / f"exported{number}" / "generation_config.json").read_text())
        assert not {"length_penalty_type", "max_length_beyond_source"} & search.keys()
        assert answer["found"].tolist() == model.generate(source, attention_mask=(source != 1).long()).tolist()


@pytest.mark.parametrize(
    ("what", "search"),
    [
        ("length_penalty_type 'gnmt'", {"num_beams": 3, **GNMT}),
        ("length_penalty_type 'gnmt'", {"num_beams": 3, "length_penalty_type": "gnmt"}),
        ("max_length_beyond_source 4", {"max_length": 6, "max_length_beyond_source": 4}),
        ("max_length_beyond_source 0", {"max_length": None, "max_length_beyond_source": 0}),
        ("max_length_beyond_source 30", {"max_new_tokens": 5, "max_length_beyond_source": 30}),
        ("'gnmt' .* and max_length_beyond_source 4", {"num_beams": 3, **GNMT, "max_length_beyond_source": 4}),
    ],
)
def test_a_search_that_transformers_does_not_know_is_refused_by_name(
    make_run: MakeRun, tmp_path: Path, what: str, search: dict[str, object]
) -> None:
    run, model = make_run()
    search_by(model, run, search)
    (tmp_path / "exported").mkdir()
    with pytest.raises(InteropError, match=what):
        export(run, tmp_path / "exported")
    assert not list((tmp_path / "exported").iterdir())

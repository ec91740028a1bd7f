"""Exports to Marian, Pegasus and Blenderbot, tried where this package cannot be imported."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.to_transformers import export

MakeRun = Callable[..., tuple[Path, Model]]
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
    run_without_us: Callable[[str], None],
    ids: tuple[torch.Tensor, torch.Tensor],
    tmp_path: Path,
) -> None:
    source, target = ids
    save_file({"source": source, "target": target}, tmp_path / "given.safetensors")
    models = []
    for number, (model_type, changes) in enumerate(CASES):
        run, model = make_run(f"run{number}", **changes)
        folder = tmp_path / f"exported{number}"
        folder.mkdir()
        export(run, folder)
        assert AutoConfig.from_pretrained(folder).model_type == model_type
        assert not list(folder.glob("*.py"))
        models.append(model)
    run_without_us(LOADED)
    mask = (source != 1).long()
    for number, model in enumerate(models):
        answer = load_file(tmp_path / f"answer_of_exported{number}")
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

"""Exports to a module of PyTorch alone, and back."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.imports import torch_transformer
from hf_vanilla.interop.imports.checkpoint import import_checkpoint
from hf_vanilla.interop.imports.frame import assembled
from hf_vanilla.interop.to_torch import export

MakeRun = Callable[..., tuple[Path, Model]]
AnswersWithoutUs = Callable[..., list[dict[str, torch.Tensor]]]
LOADED = """
sys.path.insert(0, "exported0")
from pathlib import Path
from safetensors.torch import load_file, save_file
import torch, transformer
given = load_file("given.safetensors")
for folder in sorted(Path().glob("exported*")):
    model, config = transformer.load(folder)
    model = model.double()
    with torch.no_grad():
        answer = {"logits": model(given["source"], given["target"]), "found": model.greedy(given["source"], 12)}
    save_file(answer, f"answer_of_{folder}")
assert "transformers" not in sys.modules
"""
CASES = [
    {},
    {"tie_word_embeddings": False, "activation_function": "relu", "layer_norm_eps": 1e-6},
    {"norm_first": True, "activation_function": "gelu_new"},
    {"norm_first": True, "position_embedding_type": "learned", "max_position_embeddings": 20},
    {"position_embedding_type": "learned", "max_position_embeddings": 20, "activation_function": "silu"},
]


def test_logits_are_equal_with_pytorch_alone(
    make_run: MakeRun, answers_without_us: AnswersWithoutUs, ids: tuple[torch.Tensor, torch.Tensor]
) -> None:
    source, target = ids
    runs, models = zip(*(make_run(f"run{number}", **changes) for number, changes in enumerate(CASES)), strict=True)
    mask = (source != 1).long()
    for model, answer in zip(models, answers_without_us(export, runs, LOADED), strict=True):
        with torch.no_grad():
            expected = model(source, mask, target).logits
        torch.testing.assert_close(answer["logits"], expected, rtol=0, atol=1e-10)
        greedy = model.generate(source, attention_mask=mask, num_beams=1, max_length=12)
        assert answer["found"].tolist() == greedy.tolist()


@pytest.mark.parametrize("changes", CASES)
def test_what_was_exported_comes_back(make_run: MakeRun, tmp_path: Path, changes: dict[str, object]) -> None:
    run, model = make_run(**changes)
    (tmp_path / "exported").mkdir()
    export(run, tmp_path / "exported")
    back = assembled(torch_transformer.read(tmp_path / "exported", False))
    for name in ("tie_word_embeddings", "norm_first", "activation_function", "layer_norm_eps"):
        assert getattr(back.config, name) == getattr(model.config, name)
    for name, weight in model.float().state_dict().items():
        assert torch.equal(back.state_dict()[name], weight), name


def test_a_tokenizer_without_an_unknown_token_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    """Ours would get one that has no row, as training needs it."""
    run, _ = make_run()
    folder = tmp_path / "exported"
    folder.mkdir()
    export(run, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((folder / name).read_text().replace('"<unk>"', '"<other>"'))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"unk_token": None}))
    rows = len(load_file(folder / "weights.safetensors")["source_embedding.weight"])
    with pytest.raises(
        InteropError, match=f"{rows + 1} tokens, an embedding {rows} rows, and none is of an unknown token"
    ):
        import_checkpoint(folder, "torch", tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(("what", "changes"), [("d_kv 3", {"d_kv": 3}), ("'mish'", {"activation_function": "mish"})])
def test_what_torch_has_not_is_refused_by_name(
    make_run: MakeRun, tmp_path: Path, what: str, changes: dict[str, object]
) -> None:
    run, _ = make_run(**changes)
    (tmp_path / "exported").mkdir()
    with pytest.raises(InteropError, match=what):
        export(run, tmp_path / "exported")
    assert not list((tmp_path / "exported").iterdir())


def test_a_generator_with_bias_and_pickled_weights_are_taken(
    make_run: MakeRun, ids: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    run, model = make_run()
    folder = tmp_path / "exported"
    folder.mkdir()
    export(run, folder)
    weights = load_file(folder / "weights.safetensors")
    bias = torch.randn(len(weights["source_embedding.weight"]))
    (folder / "weights.safetensors").unlink()
    torch.save(
        {name: weight.double() for name, weight in weights.items()} | {"generator.bias": bias}, folder / "weights.pt"
    )
    back = assembled(torch_transformer.read(folder, False)).double()
    with torch.no_grad():
        found, expected = (each(ids[0], decoder_input_ids=ids[1]).logits for each in (back, model))
    torch.testing.assert_close(found, expected + bias, rtol=0, atol=1e-10)


def test_wrong_files_are_refused_in_one_line(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run()
    folder = tmp_path / "exported"
    folder.mkdir()
    export(run, folder)
    config = json.loads((folder / "transformer.json").read_text())
    weights = load_file(folder / "weights.safetensors")
    norm = {f"transformer.encoder.norm.{kind}": torch.ones(16) for kind in ("weight", "bias")}
    for match, changed_config, changed_weights in (
        ("num_heads is missing", {key: value for key, value in config.items() if key != "num_heads"}, weights),
        ("d_model .'16'. must be of type int", config | {"d_model": "16"}, weights),
        ("heads: is no key", config | {"heads": 4}, weights),
        ("num_heads .5.", config | {"num_heads": 5}, weights),
        ("encoder.layer_norm", config, weights | norm),
        ("encoder_layers: 3, and the weights are of 2", config | {"encoder_layers": 3}, weights),
        ("is no weight of torch.nn.Transformer", config, weights | {"extra.weight": torch.ones(2)}),
        ("not finite", config, weights | {"transformer.decoder.layers.0.norm1.bias": torch.full((16,), torch.nan)}),
        ("a width of 32", config | {"d_model": 32}, weights),
    ):
        (folder / "transformer.json").write_text(json.dumps(changed_config))
        save_file(changed_weights, folder / "weights.safetensors")
        with pytest.raises(InteropError, match=match) as raised:
            import_checkpoint(folder, "torch", tmp_path / "back")
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "back").exists()

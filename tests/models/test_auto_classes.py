"""After `import hf_vanilla` the Auto classes know the model, and what was saved comes back as it was."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, VanillaModel

MakeConfig = Callable[..., VanillaConfig]
MakeModel = Callable[..., VanillaForConditionalGeneration]


def test_auto_classes_build_the_model_from_its_configuration(make_config: MakeConfig) -> None:
    config = make_config()
    assert type(AutoConfig.for_model("hf_vanilla", d_ff=7)) is VanillaConfig
    assert type(AutoModel.from_config(config)) is VanillaModel
    assert type(AutoModelForSeq2SeqLM.from_config(config)) is VanillaForConditionalGeneration


@pytest.mark.parametrize("tied", [True, False])
def test_saved_and_loaded_model_is_the_same(
    make_model: MakeModel, ragged: dict[str, Tensor], tmp_path: Path, tied: bool
) -> None:
    model = make_model(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is VanillaForConditionalGeneration
    assert not any(info.values()), info
    assert torch.equal(loaded(**ragged).logits, model(**ragged).logits)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".py", ".safetensors"}
    assert type(AutoConfig.from_pretrained(tmp_path)) is VanillaConfig


def test_the_tied_matrix_is_stored_once_and_tied_again(make_model: MakeModel, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert [name for name, weight in stored.items() if weight.shape == (41, 16)] == [
        "model.encoder.embed_tokens.weight"
    ]
    model = VanillaForConditionalGeneration.from_pretrained(tmp_path)
    assert model.model.encoder.embed_tokens.weight is model.lm_head.weight
    # Accelerate's FSDP2 puts input and output embedding into one group, and fails where a weight has a third place.
    assert [n for n, p in model.named_parameters(remove_duplicate=False) if p is model.lm_head.weight] == [
        "model.encoder.embed_tokens.weight",
        "lm_head.weight",
    ]
    with torch.no_grad():
        model.lm_head.weight[5] = 3.0
    assert model.model.encoder.embed_tokens(torch.tensor(5)).eq(3).all()


def test_untied_matrices_are_three(make_model: MakeModel) -> None:
    model = make_model(tie_word_embeddings=False)
    tables = [parameter for parameter in model.parameters() if parameter.shape == (41, 16)]
    assert len(tables) == 3
    assert not torch.equal(tables[0], tables[1])


def test_auto_model_loads_the_body_of_a_saved_model(
    make_model: MakeModel, ragged: dict[str, Tensor], tmp_path: Path
) -> None:
    model = make_model()
    model.save_pretrained(tmp_path)
    body = AutoModel.from_pretrained(tmp_path)
    inputs = {"input_ids": ragged["input_ids"], "attention_mask": ragged["attention_mask"]}
    target = ragged["input_ids"][:, :3]
    found = body(**inputs, decoder_input_ids=target).last_hidden_state
    assert torch.equal(found, model.model(**inputs, decoder_input_ids=target).last_hidden_state)


def test_a_body_loads_into_a_model_with_a_tied_head(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    model.model.save_pretrained(tmp_path)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("position_embedding_type", ["sinusoidal", "learned"])
def test_loads_in_bfloat16_without_a_nan(
    make_model: MakeModel, ragged: dict[str, Tensor], tmp_path: Path, position_embedding_type: str
) -> None:
    model = make_model(position_embedding_type=position_embedding_type)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    found = loaded(**ragged)
    assert found.logits.dtype == torch.bfloat16
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.logits.float(), model(**ragged).logits, rtol=0.1, atol=0.3)


def test_everything_is_initialised_that_a_checkpoint_lacks(make_model: MakeModel, tmp_path: Path) -> None:
    """Loading builds the model on the meta device: what is not in the file must still become numbers."""
    make_model().save_pretrained(tmp_path)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path,
        position_embedding_type="learned",
        max_position_embeddings=200,
        norm_first=True,
        output_loading_info=True,
    )
    assert len(info["missing_keys"]) == 2 + 4
    assert all(parameter.isfinite().all() for parameter in loaded.parameters())
    assert all(not tensor.is_meta for tensor in loaded.state_dict().values())
    assert loaded.model.encoder.layer_norm.weight.eq(1).all()
    assert loaded.model.decoder.embed_positions.weight.std().item() == pytest.approx(16**-0.5, rel=0.05)


def test_fresh_weights_are_as_pytorch_draws_them_and_embeddings_have_unit_norm() -> None:
    model = VanillaForConditionalGeneration(
        VanillaConfig(vocab_size=2000, d_model=64, d_ff=256, encoder_layers=1, decoder_layers=1)
    )
    feed_forward = model.model.encoder.layers[0].feed_forward
    for linear in (feed_forward.fc1, feed_forward.fc2):
        bound = linear.in_features**-0.5
        assert 0.99 * bound < linear.weight.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
        assert linear.bias.eq(0).all()
    assert model.get_input_embeddings().weight.norm(dim=-1).mean().item() == pytest.approx(1, rel=0.01)


def test_loads_sharded(make_model: MakeModel, ragged: dict[str, Tensor], tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(**ragged).logits, model(**ragged).logits)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", [60, 30])
def test_resizing_the_vocabulary_reaches_every_matrix(
    make_model: MakeModel, ragged: dict[str, Tensor], tied: bool, size: int
) -> None:
    model = make_model(tie_word_embeddings=tied)
    inputs = {key: value.clamp(max=29) for key, value in ragged.items()}
    before = model(**inputs).logits
    model.resize_token_embeddings(size)
    assert model.config.vocab_size == size
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    assert len(embeddings) == (1 if tied else 2)
    for matrix in (*embeddings, model.lm_head):
        assert matrix.weight.shape == (size, 16)
    after = model(**inputs).logits
    assert after.shape[-1] == size
    torch.testing.assert_close(after[..., :30], before[..., :30])


def test_importing_twice_registers_once() -> None:
    import importlib

    import hf_vanilla

    importlib.reload(hf_vanilla)
    assert type(AutoConfig.for_model("hf_vanilla")) is VanillaConfig

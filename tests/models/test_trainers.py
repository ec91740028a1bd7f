"""Tools that know nothing of this package train the model: Trainer, Accelerate, PEFT, on one process and on several."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.testing import assert_close
from train_on_ranks import PLAIN_STEPS, launch, logged_losses, make_trainer, train_plainly
from transformers import PreTrainedModel, Seq2SeqTrainer, Trainer, TrainingArguments

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

MakeModel = Callable[..., VanillaForConditionalGeneration]
COMPILED = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
# transformers 5.20 knows it by its former name.
CHECKPOINTED = {
    next(
        name for name in ("activation_checkpointing", "gradient_checkpointing") if hasattr(TrainingArguments, name)
    ): True
}
ACCUMULATED = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}


@pytest.fixture
def learner(make_config: Callable[..., VanillaConfig]) -> VanillaForConditionalGeneration:
    """A fresh model that learns 48 sentences by heart in a second."""
    sizes = {"d_model": 32, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1}
    return VanillaForConditionalGeneration(make_config(dropout=0.0, label_smoothing=0.0, **sizes))


@pytest.fixture(autouse=True)
def _forget_compiled_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def found(trainer: Trainer) -> dict[str, Any]:
    """What `train_plainly` returns, of a Trainer."""
    return {"losses": torch.tensor(logged_losses(trainer)), "weights": dict(trainer.model.state_dict())}


@pytest.mark.parametrize("kind", [Trainer, Seq2SeqTrainer])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"label_smoothing_factor": 0.1}, ACCUMULATED, {"bf16": True}, CHECKPOINTED],
    ids=lambda arguments: next(iter(arguments), "defaults"),
)
def test_trainer_lowers_the_loss_to_a_quarter(
    kind: type[Trainer], arguments: dict[str, Any], learner: VanillaForConditionalGeneration, tmp_path: Path
) -> None:
    trainer = make_trainer(learner, tmp_path, kind, max_steps=120, learning_rate=0.01, **arguments)
    trainer.train()
    losses = logged_losses(trainer)
    assert losses[-1] < losses[0] / 4


def test_predictions_with_generate_are_what_the_trainer_has_learned(
    learner: VanillaForConditionalGeneration, tmp_path: Path
) -> None:
    generation = {"predict_with_generate": True, "generation_max_length": 10}
    trainer = make_trainer(learner, tmp_path, Seq2SeqTrainer, max_steps=150, learning_rate=0.01, **generation)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 10
    predictions = trainer.predict(trainer.eval_dataset).predictions
    for prediction, sentence in zip(predictions, trainer.eval_dataset, strict=True):
        assert prediction[1 : 1 + len(sentence["labels"])].tolist() == sentence["labels"]


@pytest.mark.parametrize(
    ("arguments", "passes"),
    [({}, 1), ({"label_smoothing_factor": 0.1}, 1), (ACCUMULATED, 2), (CHECKPOINTED, 2)],
    ids=["defaults", "label_smoothing_factor", "accumulation", "activation_checkpointing"],
)
def test_trainer_takes_the_steps_of_plain_pytorch(
    arguments: dict[str, Any], passes: int, make_model: MakeModel, tmp_path: Path
) -> None:
    model = make_model(dropout=0.0)
    expected = train_plainly(copy.deepcopy(model))
    calls = []
    model.model.decoder.layers[0].feed_forward.register_forward_hook(lambda *_: calls.append(1))
    trainer = make_trainer(model, tmp_path, **PLAIN_STEPS | arguments)
    trainer.train()
    assert len(calls) == passes * PLAIN_STEPS["max_steps"]
    assert_close(found(trainer), expected, rtol=0, atol=1e-6)


def test_trainer_with_compilation_takes_the_steps_of_plain_pytorch(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model(dropout=0.0, encoder_layers=1, decoder_layers=1)
    expected = train_plainly(copy.deepcopy(model))
    trainer = make_trainer(model, tmp_path, **PLAIN_STEPS | COMPILED)
    trainer.train()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert not torch._dynamo.utils.counters["graph_break"]
    assert_close(found(trainer), expected, rtol=0, atol=1e-6)


def test_trainer_in_bfloat16_multiplies_in_bfloat16_and_keeps_float32_weights(
    make_model: MakeModel, tmp_path: Path
) -> None:
    model = make_model()
    dtypes = set()
    model.model.decoder.layers[0].feed_forward.fc1.register_forward_hook(lambda *call: dtypes.add(call[-1].dtype))
    make_trainer(model, tmp_path, bf16=True, **PLAIN_STEPS).train()
    assert dtypes == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_resuming_in_the_middle_of_an_epoch_repeats_the_uninterrupted_training_exactly(
    make_config: Callable[..., VanillaConfig], tmp_path: Path
) -> None:
    arguments = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4, "learning_rate": 0.01}
    whole = make_trainer(VanillaForConditionalGeneration(make_config()), tmp_path, **arguments)
    whole.train()
    resumed = make_trainer(VanillaForConditionalGeneration(make_config()), tmp_path / "resumed", **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert logged_losses(resumed) == logged_losses(whole)
    assert_close(found(resumed), found(whole), rtol=0, atol=0)


@pytest.mark.parametrize("processes", [1, 2])
def test_trainer_and_accelerate_take_the_steps_of_plain_pytorch_on_each_number_of_processes(
    processes: int, make_model: MakeModel, tmp_path: Path
) -> None:
    model = make_model(dropout=0.0)
    model.save_pretrained(tmp_path / "model")
    expected = train_plainly(model)
    for ways in launch("train", tmp_path, processes):
        assert_close(ways, dict.fromkeys(ways, expected), rtol=0, atol=1e-5)


@pytest.fixture
def adapted(make_model: MakeModel) -> PeftModel:
    """A model whose queries and values have low-rank adapters."""
    lora = LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, target_modules=["q_proj", "v_proj"])
    return get_peft_model(make_model(dropout=0.0), lora)


def logits(model: PreTrainedModel | PeftModel, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model.eval()(**batch).logits


def test_only_the_adapters_of_queries_and_values_have_gradients(adapted: PeftModel, ragged: dict[str, Tensor]) -> None:
    adapted(**ragged).loss.backward()
    with_gradient = {name for name, parameter in adapted.named_parameters() if parameter.grad is not None}
    attentions = 2 + 2 * 3  # of the encoder's layers and, self and cross, of the decoder's
    assert len(with_gradient) == attentions * 2 * 2  # queries and values, each with two factors
    assert all(".q_proj.lora_" in name or ".v_proj.lora_" in name for name in with_gradient)


def test_training_adapters_lowers_the_loss_and_leaves_the_model_alone(adapted: PeftModel, tmp_path: Path) -> None:
    before = {name: weight.clone() for name, weight in adapted.state_dict().items() if "lora_" not in name}
    trainer = make_trainer(adapted, tmp_path, max_steps=60, learning_rate=0.01)
    trainer.train()
    losses = logged_losses(trainer)
    assert losses[-1] < losses[0] * 0.8
    assert_close({name: adapted.state_dict()[name] for name in before}, before, rtol=0, atol=0)


def test_trained_adapters_merge_into_the_model_and_load_onto_it_with_the_same_logits(
    adapted: PeftModel, ragged: dict[str, Tensor], tmp_path: Path
) -> None:
    base = copy.deepcopy(adapted).unload()
    make_trainer(adapted, tmp_path, max_steps=10, learning_rate=0.01).train()
    adapted.save_pretrained(tmp_path / "adapter")
    expected = logits(adapted, ragged)
    assert (expected - logits(base, ragged)).abs().max() > 0.01
    assert_close(logits(PeftModel.from_pretrained(base, tmp_path / "adapter"), ragged), expected, rtol=0, atol=1e-5)
    merged = adapted.merge_and_unload()
    assert type(merged) is VanillaForConditionalGeneration
    assert_close(logits(merged, ragged), expected, rtol=0, atol=1e-5)

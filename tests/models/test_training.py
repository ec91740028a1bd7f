"""The loss is the paper's, gradients add up however a batch is cut, and the model learns."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

MakeConfig = Callable[..., VanillaConfig]
MakeModel = Callable[..., VanillaForConditionalGeneration]


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, int]:
    """The sum over all labels, token by token, and how many there are."""
    total, count = torch.zeros(()), 0
    for row, target in zip(logits, labels, strict=True):
        for scores, label in zip(row, target, strict=True):
            if label != -100:
                log_probabilities = scores - scores.exp().sum().log()
                truth = torch.full_like(scores, smoothing / len(scores))
                truth[label] += 1 - smoothing
                total, count = total - (truth * log_probabilities).sum(), count + 1
    return total, count


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_loss_is_smoothed_cross_entropy_in_training_and_plain_in_evaluation(
    make_model: MakeModel, ragged: dict[str, Tensor], smoothing: float
) -> None:
    model = make_model(label_smoothing=smoothing, dropout=0.0)
    for training in (True, False):
        outputs = model.train(training)(**ragged)
        total, count = smoothed_cross_entropy(outputs.logits, ragged["labels"], smoothing if training else 0.0)
        torch.testing.assert_close(outputs.loss, total / count)
        for items in (count, 7, torch.tensor(100)):
            torch.testing.assert_close(model(**ragged, num_items_in_batch=items).loss, total / items)


def test_labels_are_shifted_right_behind_the_start_token(make_model: MakeModel, ragged: dict[str, Tensor]) -> None:
    model = make_model(decoder_start_token_id=9)
    shifted = model.prepare_decoder_input_ids_from_labels(ragged["labels"])
    for row, labels in zip(shifted.tolist(), ragged["labels"].tolist(), strict=True):
        assert row == [9] + [1 if label == -100 else label for label in labels[:-1]]
    found = model(**ragged)
    given = model(**ragged, decoder_input_ids=shifted)
    assert torch.equal(found.logits, given.logits)
    assert found.past_key_values is None


def test_gradient_of_accumulated_unequal_batches_is_that_of_one_batch(
    make_model: MakeModel, ragged: dict[str, Tensor]
) -> None:
    model = make_model(dropout=0.0).train()
    items = int((ragged["labels"] != -100).sum())
    model(**ragged, num_items_in_batch=items).loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for rows, source_length, target_length in ((slice(0, 1), 7, 6), (slice(1, 3), 5, 5)):
        part = {
            "input_ids": ragged["input_ids"][rows, :source_length],
            "attention_mask": ragged["attention_mask"][rows, :source_length],
            "labels": ragged["labels"][rows, :target_length],
        }
        model(**part, num_items_in_batch=items).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(
    make_model: MakeModel, ragged: dict[str, Tensor], use_reentrant: bool
) -> None:
    model = make_model(dropout=0.3, attention_dropout=0.2, activation_dropout=0.1).train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        torch.manual_seed(3)
        model.zero_grad()
        model(**ragged).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert model.model.encoder.layers[0].gradient_checkpointing
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_every_parameter_gets_a_gradient(make_model: MakeModel, ragged: dict[str, Tensor]) -> None:
    for changes in ({}, {"norm_first": True, "position_embedding_type": "learned", "tie_word_embeddings": False}):
        model = make_model(**changes)
        model(**ragged).loss.backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("norm_first", [False, True])
def test_sixteen_dimensions_learn_to_reverse(norm_first: bool) -> None:
    """Strings of 2 to 6 of ten symbols, all drawn afresh: what is measured was not seen."""
    config = VanillaConfig(
        vocab_size=13,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        num_heads=2,
        d_ff=64,
        dropout=0.0,
        label_smoothing=0.0,
        norm_first=norm_first,
    )
    model = VanillaForConditionalGeneration(config).train()
    generator = torch.Generator().manual_seed(5)

    def batch(size: int) -> dict[str, Tensor]:
        length = int(torch.randint(2, 7, (1,), generator=generator))
        source = torch.randint(3, 13, (size, length), generator=generator)
        return {"input_ids": source, "labels": torch.cat([source.flip(1), torch.full((size, 1), 2)], dim=1)}

    steps = 600
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        model(**batch(64)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    model.eval()
    exact = total = 0
    for _ in range(10):
        test = batch(50)
        length = test["labels"].shape[1]
        found = model.generate(test["input_ids"], max_new_tokens=length)[:, 1:]
        if found.shape == test["labels"].shape:
            exact += int((found == test["labels"]).all(-1).sum())
        total += 50
    assert exact / total > 0.95

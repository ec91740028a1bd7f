"""Sequences longer than those of the training, for both kinds of positions: tiny models that learn to copy."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...models.configuration_vanilla import VanillaConfig
from ...models.modeling_vanilla import VanillaForConditionalGeneration
from .lesson import BLUE, ORANGE, Lesson, Table

KINDS = ("sinusoidal", "learned")
SHORTEST, LONGEST = 4, 12
"""Tokens of the sequences of the training, without <eos>."""

TESTED = (6, 8, 10, 11, 12, 13, 14, 16, 18, 20)
SEEDS = (1, 2)
STEPS = 800
BATCH = 64
TESTS = 200
VOCABULARY, FIRST_TOKEN, EOS = 13, 3, 2
LEARNING_RATE = 3e-3
WARM_UP = 100


@dataclass(frozen=True)
class Copied:
    """Shares of sequences, and of tokens, <eos> among them, that are copied, by the length of the sequence."""

    whole: dict[int, float]
    tokens: dict[int, float]


def copier(kind: str) -> VanillaForConditionalGeneration:
    config = VanillaConfig(
        vocab_size=VOCABULARY,
        d_model=64,
        num_heads=4,
        d_ff=128,
        encoder_layers=1,
        decoder_layers=1,
        dropout=0.0,
        label_smoothing=0.0,
        position_embedding_type=kind,
        max_position_embeddings=max(TESTED) + 1 if kind == "learned" else None,
    )
    return VanillaForConditionalGeneration(config)


def sequences(number: int, length: int, generator: torch.Generator) -> Tensor:
    tokens = torch.randint(FIRST_TOKEN, VOCABULARY, (number, length), generator=generator)
    return torch.cat([tokens, torch.full((number, 1), EOS)], 1)


def trained(kind: str, seed: int, steps: int = STEPS) -> VanillaForConditionalGeneration:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = copier(kind).train()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    for step in range(steps):
        rate = LEARNING_RATE * min((step + 1) / WARM_UP, 1 - step / steps + 0.02)
        optimizer.param_groups[0]["lr"] = rate
        length = int(torch.randint(SHORTEST, LONGEST + 1, (1,), generator=generator))
        texts = sequences(BATCH, length, generator)
        optimizer.zero_grad()
        model(input_ids=texts, labels=texts, skip_logits=True).loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def copied_by(model: VanillaForConditionalGeneration, seed: int) -> Copied:
    """
    Where each token is the likeliest one after all before it, greedy search would write just this: so one forward pass
    tells which sequences it would copy.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    whole, tokens = {}, {}
    for length in TESTED:
        texts = sequences(TESTS, length, generator)
        right = model(input_ids=texts, labels=texts).logits.argmax(-1) == texts
        whole[length], tokens[length] = float(right.all(1).double().mean()), float(right.double().mean())
    return Copied(whole, tokens)


def length_lesson(steps: int = STEPS) -> Lesson:
    found = {(kind, seed): copied_by(trained(kind, seed, steps), seed) for kind in KINDS for seed in SEEDS}

    def draw(figure: Any) -> None:
        for axis, field, name in zip(
            figure.subplots(1, 2, sharey=True),
            ("whole", "tokens"),
            ("share of sequences copied", "share of tokens copied"),
            strict=True,
        ):
            axis.axvspan(SHORTEST, LONGEST, color="#808080", alpha=0.15, lw=0, label="lengths of the training")
            for (kind, seed), copied in found.items():
                style, colour = ("o-", BLUE) if kind == "sinusoidal" else ("s--", ORANGE)
                values = [getattr(copied, field)[length] for length in TESTED]
                axis.plot(TESTED, values, style, color=colour, ms=4, label=kind if seed == SEEDS[0] else None)
            axis.set_xticks(range(SHORTEST, max(TESTED) + 1, 4))
            axis.set_xlabel("tokens")
            axis.set_ylabel(name)
            axis.set_ylim(-0.03, 1.03)
        axis.legend(frameon=False, fontsize=8, loc="lower left")

    columns = ["tokens", *(f"{kind}, seed {seed}" for kind, seed in found)]
    tables = [
        Table(
            title, columns, [[length, *(getattr(each, field)[length] for each in found.values())] for length in TESTED]
        )
        for title, field in (("Sequences copied without an error", "whole"), ("Tokens copied", "tokens"))
    ]
    return Lesson(
        "length",
        "Neither kind of position goes beyond the lengths of the training",
        "We chose the sinusoidal version because it may allow the model to extrapolate to sequence lengths longer "
        "than the ones encountered during training.",
        "Vaswani et al. (2017), section 3.5",
        shows_of(found),
        "The share of random sequences, and of their tokens, that models copy, by length, after a training on "
        f"{SHORTEST} to {LONGEST} tokens: both kinds of positions fall off behind {LONGEST}.",
        tables,
        draw,
    )


def shows_of(found: dict[tuple[str, int], Copied]) -> list[str]:
    def shares(kind: str, length: int, field: str = "whole") -> str:
        return " and ".join(f"{getattr(found[kind, seed], field)[length]:.2f}" for seed in SEEDS)

    return [
        f"Not true here. Models of one layer learn to copy random sequences of {SHORTEST} to {LONGEST} tokens, "
        f"{len(SEEDS)} of each kind. At {LONGEST} tokens sinusoidal positions copy {shares('sinusoidal', 12)} of the "
        f"sequences, learned ones {shares('learned', 12)}; at 13 it is {shares('sinusoidal', 13)} and "
        f"{shares('learned', 13)}, at 16 {shares('sinusoidal', 16)} and {shares('learned', 16)}.",
        "The common belief that sinusoids extrapolate because they are defined at every position is wrong: the "
        "function goes on, but what the model has learned to do with it does not. Learned positions behind the "
        "longest sequence of the training still have their first, random values. Of the tokens at 16, "
        f"{shares('sinusoidal', 16, 'tokens')} are still right with sinusoids, {shares('learned', 16, 'tokens')} "
        "with learned positions: the beginnings.",
        "What this does not show: that no Transformer can do it. Relative positions, other tasks and far more "
        "lengths in the training change the picture; and the share at 13, one token more, depends on seed and "
        "learning rate.",
    ]

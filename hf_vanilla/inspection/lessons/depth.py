"""Gradients by depth before the first step, with the normalisation after and before each sub-layer."""

from typing import Any

import torch

from ...models.configuration_vanilla import VanillaConfig
from ...models.modeling_vanilla import VanillaForConditionalGeneration
from .lesson import BLUE, ORANGE, Lesson, Table

LAYERS = 12
D_MODEL = 64
VOCABULARY = 100
SENTENCES = 16
LENGTH = 12
SEEDS = 3


def first_model(norm_first: bool, seed: int, xavier: bool = False) -> VanillaForConditionalGeneration:
    """A model before its training, with our first weights or with those of Xavier (Glorot and Bengio 2010)."""
    config = VanillaConfig(
        vocab_size=VOCABULARY,
        d_model=D_MODEL,
        num_heads=4,
        d_ff=4 * D_MODEL,
        encoder_layers=2,
        decoder_layers=LAYERS,
        norm_first=norm_first,
    )
    torch.manual_seed(seed)
    model = VanillaForConditionalGeneration(config).eval()
    if xavier:
        for name, weights in model.named_parameters():
            if name.endswith(("proj.weight", "fc1.weight", "fc2.weight")):
                torch.nn.init.xavier_uniform_(weights)
    return model


def gradients_by_layer(norm_first: bool, seed: int, xavier: bool = False) -> list[float]:
    """The norm of the gradient of the loss by the last weights (W_2 of equation 2) of each decoder layer."""
    with torch.random.fork_rng(devices=[]):
        model = first_model(norm_first, seed, xavier)
        texts = torch.randint(3, VOCABULARY, (2, SENTENCES, LENGTH))
    model(input_ids=texts[0], labels=texts[1]).loss.backward()
    decoder: Any = model.get_decoder()
    return [float(layer.feed_forward.fc2.weight.grad.norm()) for layer in decoder.layers]


def mean_gradients(norm_first: bool, xavier: bool = False) -> list[float]:
    each = torch.tensor([gradients_by_layer(norm_first, seed, xavier) for seed in range(SEEDS)], dtype=torch.float64)
    means: list[float] = each.mean(0).tolist()
    return means


def depth_lesson() -> Lesson:
    curves = {
        "post-norm, our first weights": mean_gradients(False),
        "pre-norm, our first weights": mean_gradients(True),
        "post-norm, Xavier's": mean_gradients(False, xavier=True),
        "pre-norm, Xavier's": mean_gradients(True, xavier=True),
    }
    ratios = {name: curve[-1] / curve[0] for name, curve in curves.items()}

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        styles = ((ORANGE, "o-"), (BLUE, "s-"), (ORANGE, "o:"), (BLUE, "s:"))
        for (name, curve), (colour, style) in zip(curves.items(), styles, strict=True):
            axis.plot(range(1, LAYERS + 1), curve, style, color=colour, label=name, ms=4)
        axis.set_yscale("log")
        axis.set_xlabel("decoder layer, the last one next to the loss")
        axis.set_ylabel("norm of the gradient of W₂")
        axis.legend(frameon=False)

    return Lesson(
        "depth",
        "Where the gradient goes: norm after or before each sub-layer",
        "We employ a residual connection around each of the two sub-layers, followed by layer normalization. That "
        "is, the output of each sub-layer is LayerNorm(x + Sublayer(x)), where Sublayer(x) is the function "
        "implemented by the sub-layer itself.",
        "Vaswani et al. (2017), section 3.1",
        shows_of(ratios),
        f"The norm of the gradient of the second feed-forward matrix by decoder layer, for {LAYERS} layers before the "
        "first step, with both places of the normalisation and two kinds of first weights.",
        [
            Table(
                f"Gradient norm of W₂ before the first step, mean of {SEEDS} seeds",
                ["decoder layer", *curves],
                [[layer + 1, *(curve[layer] for curve in curves.values())] for layer in range(LAYERS)],
            ),
            Table("Last layer against first", ["model", "ratio"], [[name, ratio] for name, ratio in ratios.items()]),
        ],
        draw,
    )


def shows_of(ratios: dict[str, float]) -> list[str]:
    ours_post, ours_pre, xavier_post, xavier_pre = ratios.values()
    return [
        "The paper gives no reason for this place of the normalisation. Later ones normalise the input of each "
        "sub-layer instead (pre-norm), because with post-norm gradients near the output are far larger than below "
        "before the first step (Xiong et al. 2020). They show it for the first weights of Xavier, which the "
        "authors' own code draws, too.",
        f"True there: before the first step of {LAYERS} layers the last one has {xavier_post:.0f} times the gradient "
        f"of the first with post-norm, and {xavier_pre:.2f} times with pre-norm.",
        "Not true of every post-norm model, which is the common belief: with our first weights, uniform within "
        f"1/√inputs, it is {ours_post:.1f} times, and {ours_pre:.1f} times with pre-norm. Smaller weights make each "
        "sub-layer add less to what it normalises, so that little of the gradient is lost on its way down. So it is "
        "the first weights as much as the place of the normalisation that decide.",
        "What this does not show: how well either one trains. These are gradients before the first step only, with the "
        "decoder's W₂ standing for all weights.",
    ]

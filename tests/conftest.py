"""What all tests share: no network, and tiny models whose weights are asymmetric so that no wrong axis hides."""

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is: tests run side by side, and what they compute is tiny

import pytest
import torch
from chromium import NAMES, chromium_of

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

TINY = {
    "vocab_size": 41,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "num_heads": 4,
    "d_ff": 24,
    "activation_function": "gelu",
}


def pytest_collection_finish() -> None:
    """Every training collects garbage, and would look each time through all that was imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(17)


@pytest.fixture
def make_config() -> Callable[..., VanillaConfig]:
    """`make_config(**changes)`: a tiny configuration with other depths of encoder and decoder."""
    return lambda **changes: VanillaConfig(**TINY | changes)


@pytest.fixture
def make_model(make_config: Callable[..., VanillaConfig]) -> Callable[..., VanillaForConditionalGeneration]:
    """
    `make_model(**changes)`: a tiny model in eval mode whose every parameter, also biases and norms, is random.

    Its linear maps are as large as Xavier's: with the smaller first weights of a training all tokens of a tiny model
    are about as likely, and rounding would decide searches.
    """

    def make(**changes: object) -> VanillaForConditionalGeneration:
        model = VanillaForConditionalGeneration(make_config(**changes)).eval()
        with torch.no_grad():
            embeddings = model.get_input_embeddings().weight  # the output projection has the same if they are tied
            linears = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
            for linear in [each for each in linears if each.weight is not embeddings]:
                linear.weight.mul_((6 * linear.in_features / (linear.in_features + linear.out_features)) ** 0.5)
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        return model

    return make


@pytest.fixture
def ragged() -> dict[str, torch.Tensor]:
    """Three right-padded sources of 7, 4 and 5 tokens and targets of 6, 5 and 3: pad 1, bos 0, eos 2."""
    source, target = torch.full((3, 7), 1), torch.full((3, 6), -100)
    for row, (source_length, target_length) in enumerate([(7, 6), (4, 5), (5, 3)]):
        source[row, : source_length - 1] = torch.randint(3, 41, (source_length - 1,))
        source[row, source_length - 1] = 2
        target[row, : target_length - 1] = torch.randint(3, 41, (target_length - 1,))
        target[row, target_length - 1] = 2
    return {"input_ids": source, "attention_mask": (source != 1).long(), "labels": target}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium by playwright. Closed with each module: while it is open, asyncio has a running loop."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: it comes with the extra dev")
    binary = chromium_of()
    if binary is None:
        pytest.skip(f"no Chromium on PATH ({', '.join(NAMES)}): apt-get install chromium-headless-shell")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield chromium
        chromium.close()

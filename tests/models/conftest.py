"""What tests of searches share: models that end early and late, and sources of all lengths."""

from collections.abc import Callable

import pytest
import torch
from searches import EOS, PAD, SENTENCES, VOCAB, Recorder, Source

from hf_vanilla import VanillaForConditionalGeneration as Model


@pytest.fixture
def make_decided(make_model: Callable[..., Model]) -> Callable[..., Model]:
    """Random models that end early and late and prefer some tokens, in float64: what is near is not equal."""

    def make(seed: int = 1, **changes: object) -> Model:
        torch.manual_seed(seed)
        with torch.no_grad():
            model = make_model(vocab_size=VOCAB, tie_word_embeddings=False, **changes).double()
            model.lm_head.weight.mul_(1.5)
            model.lm_head.weight[EOS] *= 1.3
        model.generation_config.max_length = 30
        return model

    return make


@pytest.fixture
def sources() -> Source:
    lengths = torch.randint(1, 12, (SENTENCES,))
    ids = torch.randint(3, VOCAB, (SENTENCES, 12))
    mask = (torch.arange(12) <= lengths[:, None]).long()
    return {"input_ids": ids.where(mask.bool(), PAD), "attention_mask": mask}


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)

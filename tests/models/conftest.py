"""What tests of models share: for searches models that end early and late, and a cache of code."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from searches import EOS, PAD, SENTENCES, VOCAB, Recorder, Source
from transformers import dynamic_module_utils

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


@pytest.fixture
def _own_cache_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of code for one test: what other tests of this process loaded is not in the way, and stays loaded."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    others = [path for path in sys.path if (Path(path) / "transformers_modules").is_dir()]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in others])
    of_others = {name: sys.modules.pop(name) for name in loaded_code()}
    yield
    for name in loaded_code():
        del sys.modules[name]
    sys.modules.update(of_others)


def loaded_code() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]

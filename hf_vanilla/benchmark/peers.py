"""Models that compute the same as ours: Marian's (post-norm) and Pegasus's (pre-norm) of transformers, CTranslate2."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from ..interop.stock_classes import stock_model as peer_of
from ..interop.stock_classes import stock_model_like as peer_with_the_weights_of
from ..models.modeling_vanilla import VanillaForConditionalGeneration

__all__ = ["ctranslate2_with_the_weights_of", "peer_of", "peer_with_the_weights_of"]


def ctranslate2_with_the_weights_of(
    model: VanillaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> Any:
    """A CTranslate2 translator in float32. Its files are written into `folder`."""
    import ctranslate2
    from ctranslate2.converters.transformers import BartLoader

    peer = peer_with_the_weights_of(model)
    peer.config.normalize_before, peer.config.normalize_embedding = model.config.norm_first, False
    specification = BartLoader()(peer, tokenizer)
    specification.validate()
    specification.optimize()
    folder.mkdir(exist_ok=True)
    specification.save(str(folder))
    # Several batches at a time with one thread each are faster than one batch with all threads.
    return ctranslate2.Translator(
        str(folder), compute_type="float32", inter_threads=torch.get_num_threads(), intra_threads=1
    )

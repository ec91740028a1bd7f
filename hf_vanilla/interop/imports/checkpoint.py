"""Reads a checkpoint of another toolkit, and writes it as a run directory."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ...files import new_folder
from ...messages import say
from ...models.modeling_vanilla import VanillaForConditionalGeneration
from ..plain_tokenizer import save_tokenizer
from . import fairseq, joeynmt, marian, torch_transformer
from .frame import Foreign, assembled

READERS: Mapping[str, Callable[[Path, bool], Foreign]] = {
    "joeynmt": joeynmt.read,
    "fairseq": fairseq.read,
    "torch": torch_transformer.read,
    "marian": marian.read,
}


def import_checkpoint(
    checkpoint: Path, toolkit: str, output: Path, segmented: bool = False
) -> VanillaForConditionalGeneration:
    """
    Write a checkpoint as a run directory: all of it, or nothing.

    Args:
        segmented: The texts that the model will get are segmented already, as its toolkit read them.
    """
    with new_folder(output) as folder:
        found = READERS[toolkit](checkpoint, segmented)
        model = assembled(found)
        model.float().save_pretrained(folder, max_shard_size="1000GB")
        save_tokenizer(found.tokenizer, folder)
    config = model.config
    tied = "one matrix of embeddings" if config.tie_word_embeddings else "three matrices of embeddings"
    say(f"imported {model.num_parameters():,} parameters, {config.vocab_size:,} tokens, {tied}, into {output}")
    return model

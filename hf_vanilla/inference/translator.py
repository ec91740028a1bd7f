"""Lines to lines: batches by length, searches, restores the order."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from ..data.errors import InvalidDataError
from ..data.tokenizer import Encoder

Source = Sequence[str]
"""The parts of a source: one, unless the model was trained on several columns."""


class Translator:
    """
    Translates with the model's own generation config.

    Args:
        max_tokens: Padded source tokens of a batch, hypotheses counted: what memory allows.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, max_tokens: int = 16_384):
        self.model = model
        self.tokenizer = tokenizer
        self.encoder = Encoder(tokenizer)
        self.max_tokens = max_tokens

    @classmethod
    def from_pretrained(cls, run: str | Path, **model_arguments: Any) -> Self:
        """Load a run directory, or a model from the Hub, onto the GPU if there is one."""
        model = AutoModelForSeq2SeqLM.from_pretrained(run, **model_arguments)
        if torch.accelerator.is_available() and "device_map" not in model_arguments:
            model.to(torch.accelerator.current_accelerator())
        return cls(model.eval(), AutoTokenizer.from_pretrained(run))

    @torch.no_grad()
    def translate(self, sources: Sequence[Source], *, prefix: str = "", **generation: Any) -> list[str]:
        """One line for each source, in their order. `generation` are keys of the generation config."""
        ids = self.encoder.sources(sources, prefix)
        filled = [index for index, parts in enumerate(sources) if any(part.strip() for part in parts)]
        self._check_lengths(ids)
        translations = [""] * len(sources)
        was_training = self.model.training
        self.model.eval()
        for batch in self._batches(filled, ids, generation):
            inputs = self.tokenizer.pad({"input_ids": [ids[index] for index in batch]}, return_tensors="pt")
            found = self.model.generate(**inputs.to(self.model.device), **generation)
            for index, line in zip(batch, self.tokenizer.batch_decode(found, skip_special_tokens=True), strict=True):
                translations[index] = line
        self.model.train(was_training)
        return translations

    def _check_lengths(self, ids: list[list[int]]) -> None:
        config = self.model.config
        if getattr(config, "position_embedding_type", None) == "learned":
            for number, source in enumerate(ids, start=1):
                if len(source) > config.max_position_embeddings:
                    raise InvalidDataError(
                        f"source {number} has {len(source)} tokens, more than the {config.max_position_embeddings} "
                        "positions that the model has learned; shorten it"
                    )

    def _batches(self, indices: list[int], ids: list[list[int]], generation: dict[str, Any]) -> Iterator[list[int]]:
        """The longest first, so that a batch too large for memory fails at once."""
        beams = generation.get("num_beams") or self.model.generation_config.num_beams or 1
        remaining = sorted(indices, key=lambda index: len(ids[index]), reverse=True)
        while remaining:
            size = max(1, self.max_tokens // (len(ids[remaining[0]]) * beams))
            yield remaining[:size]
            remaining = remaining[size:]

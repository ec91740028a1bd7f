"""onnxruntime as an engine of a `Translator`: the graphs of `hf-vanilla export --to onnx`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig

from .batching import batches_by_length
from .engine import EngineError, Found
from .onnx_search import Graphs, Search, log_total, search_batch
from .scoring import MAX_LOGITS
from .search_settings import SearchSettings

OF_THE_CALL = ("generation_config", "return_sequence_scores")  # no keys of a generation config


def load_onnx_engine(
    folder: Path, dtype: torch.dtype | str | None = None, device_map: str | None = None
) -> "OnnxEngine":
    if device_map not in (None, "cpu"):
        raise EngineError(f"{folder} computes on the CPU: {device_map} is not possible with it")
    if dtype not in (None, "auto", torch.float32, "float32"):
        raise EngineError(f"{folder} computes in float32: {dtype} is not possible with it")
    return OnnxEngine(Graphs(folder, torch.get_num_threads()), GenerationConfig.from_pretrained(folder))


class OnnxEngine:
    def __init__(self, graphs: Graphs, generation_config: GenerationConfig):
        self.graphs, self.generation_config = graphs, generation_config
        self.vocab_size: int = graphs.sizes["vocab_size"]
        self.positions: int | None = graphs.sizes.get("max_position_embeddings")

    def check(self, settings: SearchSettings) -> None:
        check_search(settings)

    def search(
        self,
        sources: Sequence[list[int]],
        starts: Sequence[list[int]],
        numbers: Sequence[int],
        settings: SearchSettings,
        suppressed: Sequence[int] = (),
    ) -> list[list[Found]]:
        search = search_of(settings, numbers, len(starts[0]), suppressed)
        return search_batch(self.graphs, sources, search, starts)

    def log_probabilities(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], max_tokens: int
    ) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in targets]
        lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
        for batch in batches_by_length(lengths, min(max_tokens, MAX_LOGITS // self.vocab_size)):
            longest = max(1, *(len(targets[place]) for place in batch))
            padding = self.graphs.sizes["pad_token_id"]
            rows = np.array([[*targets[p], *[padding] * (longest - len(targets[p]))] for p in batch], np.int64)
            start = np.full_like(rows[:, :1], self.graphs.sizes["decoder_start_token_id"])
            read = np.concatenate([start, rows[:, :-1]], axis=1)
            logits, _ = self.graphs.all_logits(read, self.graphs.encode([sources[p] for p in batch]), None)
            each = np.take_along_axis(logits, rows[..., None], 2) - log_total(logits)
            for place, row in zip(batch, each[..., 0].tolist(), strict=True):
                found[place] = row[: len(targets[place])]
        return found


def check_search(settings: SearchSettings) -> None:
    """Raise an EngineError that names a setting which the search over ONNX graphs does not follow."""
    search_of(settings, [], 0)


def search_of(settings: SearchSettings, numbers: Sequence[int], forced: int, suppressed: Sequence[int] = ()) -> Search:
    if settings.of("do_sample"):
        raise EngineError("do_sample (True) is not done by the search over ONNX graphs: use the run itself")
    options = settings.options_of(numbers, forced, suppressed)
    given = {name: value for name, value in options.items() if name not in OF_THE_CALL}
    return Search.of(*(config.to_dict() for config in reversed(settings.configs)), given)

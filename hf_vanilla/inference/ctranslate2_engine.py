"""CTranslate2 as an engine: its beam search finds the hypotheses, and what transformers' search keeps is chosen here."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from ..manifest import MANIFEST, ManifestError, verify_foreign
from ..run_directory import CARD, MODEL_CONFIG
from .engine import Engine, EngineError, Found
from .finished import FinishedHypothesis, kept_by
from .onnx_engine import load_onnx_engine
from .search_settings import SearchSettings

MAX_SOURCE_TOKENS = 2_000  # of a batch: in larger ones there would be none for some of the threads
PATIENCE = (
    2,
    4,
    8,
    16,
    64,
)  # how many times num_beams hypotheses to wait for, until no later one can be among the best

OF_ANY_SEARCH = {
    *("num_beams", "num_return_sequences", "length_penalty", "length_penalty_type", "early_stopping", "max_length"),
    *("max_new_tokens", "max_length_beyond_source", "bos_token_id", "pad_token_id", "eos_token_id"),
    *("decoder_start_token_id", "use_cache", "alignment", "transformers_version", "generation_config"),
}
OF_GREEDY_SEARCH = {"min_length", "min_new_tokens", "no_repeat_ngram_size", "bad_words_ids", "suppress_tokens"}
"""With beams they are refused: CTranslate2 would share the probability of what is forbidden among the rest."""


def is_export(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() and (folder / MODEL_CONFIG).is_file()


def load_export(
    folder: Path, dtype: torch.dtype | str | None = None, device_map: str | None = None
) -> tuple[Engine, PreTrainedTokenizerFast, int]:
    """The engine of an export, its tokenizer, and the number of columns of its sources."""
    facts = verify_foreign(folder, besides=[CARD])
    if facts.get("format") == "onnx":
        onnx_engine = load_onnx_engine(folder, dtype)
        return onnx_engine, PreTrainedTokenizerFast.from_pretrained(folder), facts["columns"]
    if facts.get("format") != "ctranslate2":
        raise ManifestError(f"{folder} is an export to {facts.get('format')}, which no engine of ours runs")
    try:
        import ctranslate2
    except ModuleNotFoundError:
        raise EngineError(f"{folder} needs ctranslate2: pip install 'hf_vanilla[export]'") from None
    device, _, index = (device_map or ("cuda" if torch.cuda.is_available() else "cpu")).partition(":")
    name = str(dtype).removeprefix("torch.") if dtype not in (None, "auto") else "default"
    translator = ctranslate2.Translator(
        str(folder),
        device=device,
        device_index=int(index or 0),
        compute_type=name,
        # Several batches at a time with one thread each are faster than one batch with all threads.
        inter_threads=torch.get_num_threads(),
        intra_threads=1,
    )
    words = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    config = json.loads((folder / MODEL_CONFIG).read_text(encoding="utf-8"))
    engine = CTranslate2Engine(translator, words, GenerationConfig.from_pretrained(folder), positions_of(config))
    return engine, PreTrainedTokenizerFast.from_pretrained(folder), facts["columns"]


def positions_of(config: dict[str, Any]) -> int:
    """How many rows the tables of positions have."""
    is_learned = config.get("position_embedding_type") == "learned"
    return int(config["max_position_embeddings"]) if is_learned else SINUSOIDS


SINUSOIDS = 4096  # rows of the table that an export has for sinusoidal positions; 8 MB in a model that is 512 wide


class CTranslate2Engine:
    """
    Args:
        words: The tokens in the order of their ids: CTranslate2 takes and gives tokens, not ids.
    """

    def __init__(self, translator: Any, words: list[str], generation_config: GenerationConfig, positions: int):
        self.translator, self.words, self.positions = translator, words, positions
        self.ids = {word: place for place, word in enumerate(words)}
        self.vocab_size = len(words)
        self.generation_config = generation_config

    def check(self, settings: SearchSettings) -> None:
        given = {name for config in settings.configs for name in config.to_diff_dict()} | settings.generation.keys()
        served = OF_ANY_SEARCH | (OF_GREEDY_SEARCH if settings.num_beams == 1 else set())
        nothing = (None, False, *([0] if settings.num_beams > 1 else []))
        for name in sorted(given - served):
            value = settings.of(name)
            if name.startswith("_") or value in nothing or (name == "repetition_penalty" and value == 1.0):
                continue
            beams = f" with num_beams={settings.num_beams}" if name in OF_GREEDY_SEARCH else ""
            raise EngineError(f"{name} ({value}) cannot be followed exactly by CTranslate2{beams}: use the run itself")
        eos = settings.of("eos_token_id")
        if isinstance(eos, list) and len(eos) != 1:
            raise EngineError(f"eos_token_id ({eos}) must be one token for CTranslate2: use the run itself")

    def search(
        self,
        sources: Sequence[list[int]],
        starts: Sequence[list[int]],
        numbers: Sequence[int],
        settings: SearchSettings,
    ) -> list[list[Found]]:
        limits = settings.limits([len(source) for source in sources], len(starts[0]))
        search = self._greedy if settings.num_beams == 1 else self._beams
        found: list[list[Found]] = [[]] * len(sources)
        todo, limit = list(range(len(sources))), max(limits)
        while todo:
            # First with the limit of the longest: most sentences end before their own.
            rows = search([sources[p] for p in todo], [starts[p] for p in todo], limit, settings, max(limits))
            for place, (answers, longest) in zip(todo, rows, strict=True):
                if longest < limits[place] or limit == limits[place]:
                    found[place] = answers
            todo = [place for place in todo if not found[place]]
            if todo:
                limit = max(limits[place] for place in todo if limits[place] < limit)
                later = [place for place in todo if limits[place] < limit]
                todo = [place for place in todo if limits[place] == limit]
                rows = search([sources[p] for p in todo], [starts[p] for p in todo], limit, settings, max(limits))
                for place, (answers, _) in zip(todo, rows, strict=True):
                    found[place] = answers
                todo = later
        return found

    def log_probabilities(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], max_tokens: int
    ) -> list[list[float]]:
        """CTranslate2 puts <eos> behind each target by itself."""
        eos = self.eos
        without_end = [target[:-1] if target and target[-1] == eos else target for target in targets]
        options = {"max_batch_size": max_tokens, "batch_type": "tokens", "max_input_length": 0}
        scored = self.translator.score_batch(self._words(sources), self._words(without_end), **options)
        return [each.log_probs[: len(target)] for each, target in zip(scored, targets, strict=True)]

    @property
    def eos(self) -> int:
        eos = self.generation_config.eos_token_id
        return int(eos[0] if isinstance(eos, list) else eos)

    def _words(self, rows: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self.words[token] for token in row] for row in rows]

    def _translate(
        self, sources: Sequence[list[int]], starts: Sequence[list[int]], limit: int, **options: Any
    ) -> list[list[tuple[list[int], float]]]:
        """Whole targets with the scores that CTranslate2 gives them. Its own defaults are all said otherwise here."""
        forced = len(starts[0])
        given = {"target_prefix": self._words(starts)} if forced else {}
        usual = {"max_input_length": 0, "min_decoding_length": 0, "return_end_token": True, "return_scores": True}
        usual |= {"max_batch_size": MAX_SOURCE_TOKENS, "batch_type": "tokens"}
        usual |= {"max_decoding_length": limit + forced}  # what is forced counts
        results = self.translator.translate_batch(self._words(sources), **given, **usual | options)
        return [
            [
                ([self.ids[word] for word in words], score)
                for words, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _greedy(
        self, sources: Sequence[list[int]], starts: Sequence[list[int]], limit: int, settings: SearchSettings, _: int
    ) -> list[tuple[list[Found], int]]:
        forced = len(starts[0])
        rows = self._translate(sources, starts, limit, beam_size=1, **self._greedy_options(settings, forced))
        targets = [row[0][0] for row in rows]
        scores = [math.nan] * len(targets)
        if settings.has_scores:  # what is forbidden has a share in them
            for place, row in enumerate(self.log_probabilities(sources, targets, MAX_SOURCE_TOKENS)):
                scores[place] = math.fsum(row[forced:]) / max(1, len(row) - forced) ** settings.length_penalty
        return [([Found(target, score)], len(target) - forced) for target, score in zip(targets, scores, strict=True)]

    def _greedy_options(self, settings: SearchSettings, forced: int) -> dict[str, Any]:
        lengths = ((settings.of("min_length") or 0) - 1, (settings.of("min_new_tokens") or 0) + forced)
        suppressed = [*(settings.of("bad_words_ids") or []), *([one] for one in settings.of("suppress_tokens") or [])]
        return {
            "min_decoding_length": max(0, *lengths),
            "no_repeat_ngram_size": settings.of("no_repeat_ngram_size") or 0,
            "suppress_sequences": self._words(suppressed) or None,
        }

    def _beams(
        self,
        sources: Sequence[list[int]],
        starts: Sequence[list[int]],
        limit: int,
        settings: SearchSettings,
        longest: int,
    ) -> list[tuple[list[Found], int]]:
        """
        The same hypotheses stay in the beam of CTranslate2 as in that of transformers. It differs in when a search ends:
        here after `patience * num_beams` finished ones, there by whether a better one may come. So more than enough are
        waited for, and `kept_by` chooses those that transformers' search had seen at its end.
        """
        found: list[tuple[list[Found], int]] = [([], 0)] * len(sources)
        todo = list(range(len(sources)))
        for patience in PATIENCE:
            rows = self._finished([sources[p] for p in todo], [starts[p] for p in todo], limit, patience, settings)
            later = self._prefix_scores([sources[p] for p in todo], rows, len(starts[0]), settings)
            unsure = []
            for place, row, scores_of in zip(todo, rows, later, strict=True):
                kept, is_sure = kept_by(settings, row, scores_of, longest, limit)
                found[place] = ([Found(one.token_ids, one.score) for one in kept], max(one.length for one in row))
                if not is_sure and patience != PATIENCE[-1]:
                    unsure.append(place)
            todo = unsure
            if not todo:
                break
        return found

    def _finished(
        self,
        sources: Sequence[list[int]],
        starts: Sequence[list[int]],
        limit: int,
        patience: int,
        settings: SearchSettings,
    ) -> list[list[FinishedHypothesis]]:
        """All hypotheses that come to their end while so many times `num_beams` of them are waited for."""
        number, forced = settings.num_beams * patience, len(starts[0])
        options = {"beam_size": settings.num_beams, "patience": patience, "num_hypotheses": number, "length_penalty": 0}
        rows = self._translate(sources, starts, limit, **options)
        exponent = settings.length_penalty

        def hypothesis(target: list[int], total: float) -> FinishedHypothesis:
            length = len(target) - forced
            return FinishedHypothesis(target, length, total, total / length**exponent)

        return [[hypothesis(*one) for one in row] for row in rows]

    def _prefix_scores(
        self, sources: Sequence[list[int]], rows: list[list[FinishedHypothesis]], forced: int, settings: SearchSettings
    ) -> list[Callable[[FinishedHypothesis, int], float]]:
        """For each sentence: how probable the first tokens of one of its later hypotheses are."""
        asked = [(place, one) for place, row in enumerate(rows) for one in later_ones(row, settings)]
        targets = [one.token_ids for _, one in asked]
        scored = self.log_probabilities([sources[p] for p, _ in asked], targets, MAX_SOURCE_TOKENS) if asked else []
        sums: dict[int, dict[tuple[int, ...], list[float]]] = defaultdict(dict)
        for (place, one), row in zip(asked, scored, strict=True):
            sums[place][tuple(one.token_ids)] = row[forced:]

        def of(place: int) -> Callable[[FinishedHypothesis, int], float]:
            return lambda one, length: math.fsum(sums[place][tuple(one.token_ids)][:length])

        return [of(place) for place in range(len(rows))]


def later_ones(row: list[FinishedHypothesis], settings: SearchSettings) -> list[FinishedHypothesis]:
    """Those that finished after `num_beams` others had, if one of them would be among the best."""
    if settings.of("early_stopping") is True:
        return []
    full = sorted(one.length for one in row)[min(settings.num_beams, len(row)) - 1]
    best = sorted(row, key=lambda one: one.score, reverse=True)[: settings.number]
    return [one for one in row if one.length > full] if any(one.length > full for one in best) else []

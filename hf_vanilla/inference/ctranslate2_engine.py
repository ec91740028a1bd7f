"""CTranslate2 as an engine: it finds hypotheses, of which those that transformers' search keeps are chosen."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from ..models.generation_vanilla import GNMTLengthPenalty
from ..run_directory import MODEL_CONFIG
from .engine import EngineError, Found
from .finished import Ending, FinishedHypothesis, best, end_of, hopes_for_longer
from .search_settings import SearchSettings, asks_for_nothing

MAX_SOURCE_TOKENS = 2_000  # of a batch: in larger ones there would be none for some of the threads
JUST_ENOUGH = 1.01
"""So many times num_beams hypotheses are waited for. With 1, CTranslate2 may end a search with the first one."""

LOOKS_AHEAD = {2: 4, 4: 16, 6: math.inf}
"""After so many looks at single steps, so many times num_beams hypotheses are waited for, to skip steps."""

OF_ANY_SEARCH = {
    *("num_beams", "num_return_sequences", "length_penalty", "length_penalty_type", "early_stopping", "max_length"),
    *("max_new_tokens", "max_length_beyond_source", "bos_token_id", "pad_token_id", "eos_token_id"),
    *("decoder_start_token_id", "use_cache", "alignment", "transformers_version", "generation_config"),
}
OF_GREEDY_SEARCH = {
    *("repetition_penalty", "min_length", "min_new_tokens"),
    *("no_repeat_ngram_size", "bad_words_ids", "suppress_tokens"),
}
"""With beams they are refused: CTranslate2 would share the probability of what is forbidden among the rest."""


def load_ctranslate2_engine(
    folder: Path, dtype: torch.dtype | str | None = None, device_map: str | None = None
) -> "CTranslate2Engine":
    try:
        import ctranslate2
    except ModuleNotFoundError:
        raise EngineError(f"{folder} needs ctranslate2: pip install 'hf_vanilla[export]'") from None
    device, _, index = (device_map or ("cuda" if torch.cuda.is_available() else "cpu")).partition(":")
    name = str(dtype).removeprefix("torch.") if dtype not in (None, "auto") else "default"
    try:
        translator = ctranslate2.Translator(
            str(folder),
            device=device,
            device_index=int(index or 0),
            compute_type=name,
            # Several batches at a time with one thread each are faster than one batch with all threads.
            inter_threads=torch.get_num_threads(),
            intra_threads=1,
        )
    except (RuntimeError, ValueError) as error:  # of a device or a type that it does not have here
        raise EngineError(f"{folder} cannot compute on {device_map or device} in {name}: {error}") from None
    words = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    config = json.loads((folder / MODEL_CONFIG).read_text(encoding="utf-8"))
    return CTranslate2Engine(translator, words, GenerationConfig.from_pretrained(folder), positions_of(config))


def positions_of(config: dict[str, Any]) -> int:
    """How many rows the tables of positions have."""
    is_learned = config.get("position_embedding_type") == "learned"
    return int(config["max_position_embeddings"]) if is_learned else SINUSOIDS


SINUSOIDS = 4096  # rows of the table that an export has for sinusoidal positions; 8 MB in a model that is 512 wide


def check_search(settings: SearchSettings) -> None:
    """Raise an EngineError that names a setting which CTranslate2 does not follow exactly."""
    given = {name for config in settings.configs for name in config.to_diff_dict()} | settings.generation.keys()
    served = OF_ANY_SEARCH | (OF_GREEDY_SEARCH if settings.num_beams == 1 else set())
    for name in sorted(given - served):
        value = settings.of(name)
        if asks_for_nothing(name, value):
            continue
        beams = f" with num_beams={settings.num_beams}" if name in OF_GREEDY_SEARCH else ""
        raise EngineError(f"{name} ({value}) cannot be followed exactly by CTranslate2{beams}: use the run itself")
    eos = settings.of("eos_token_id")
    if eos is None or (isinstance(eos, list) and len(eos) != 1):
        raise EngineError(f"eos_token_id ({eos}) must be one token for CTranslate2: use the run itself")


class CTranslate2Engine:
    """
    Args:
        words: The tokens in the order of their ids: CTranslate2 takes and gives tokens, not ids.
    """

    def __init__(self, translator: Any, words: list[str], generation_config: GenerationConfig, positions: int):
        self.translator, self.words = translator, words
        self.positions: int | None = positions
        self.ids = {word: place for place, word in enumerate(words)}
        self.vocab_size = len(words)
        self.generation_config = generation_config

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
        if suppressed:
            raise EngineError(
                "a forced beginning that ends in a word or a space cannot be kept from going on by CTranslate2: use "
                "the run itself"
            )
        limits = settings.limits([len(source) for source in sources], len(starts[0]))
        search = self._greedy_search if settings.num_beams == 1 else self._beam_search
        return search(sources, starts, limits, settings)

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
        usual: dict[str, Any] = {"max_input_length": 0, "min_decoding_length": 0}
        usual |= {"return_end_token": True, "return_scores": True}
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

    def _greedy_search(
        self, sources: Sequence[list[int]], starts: Sequence[list[int]], limits: Sequence[int], settings: SearchSettings
    ) -> list[list[Found]]:
        """CTranslate2 has one limit for all: those targets that are longer than their own are searched again."""
        forced, options = len(starts[0]), self._greedy_options(settings, len(starts[0]))
        targets: list[list[int]] = [[]] * len(sources)

        def run(places: list[int], limit: int) -> None:
            of_places = [[each[place] for place in places] for each in (sources, starts)]
            rows = self._translate(of_places[0], of_places[1], limit, beam_size=1, **options)
            for place, [(target, _)] in zip(places, rows, strict=True):
                targets[place] = target

        run(list(range(len(sources))), max(limits))
        cut = [place for place, target in enumerate(targets) if len(target) - forced > limits[place]]
        for limit, group in groupby(sorted(cut, key=limits.__getitem__), key=limits.__getitem__):
            run(list(group), limit)
        scores = [math.nan] * len(targets)
        if settings.has_scores:  # what is forbidden has a share in them
            for place, row in enumerate(self.log_probabilities(sources, targets, MAX_SOURCE_TOKENS)):
                scores[place] = math.fsum(row[forced:]) / max(1, len(row) - forced) ** settings.length_penalty
        return [[Found(target, score)] for target, score in zip(targets, scores, strict=True)]

    def _greedy_options(self, settings: SearchSettings, forced: int) -> dict[str, Any]:
        lengths = ((settings.of("min_length") or 0) - 1, (settings.of("min_new_tokens") or 0) + forced)
        words = [word for word in settings.of("bad_words_ids") or [] if word != [self.eos]]  # as generate()
        suppressed = [*words, *([one] for one in settings.of("suppress_tokens") or [])]
        return {
            "min_decoding_length": max(0, *lengths),
            "repetition_penalty": settings.of("repetition_penalty") or 1.0,
            "no_repeat_ngram_size": settings.of("no_repeat_ngram_size") or 0,
            "suppress_sequences": self._words(suppressed) or None,
        }

    def _beam_search(
        self, sources: Sequence[list[int]], starts: Sequence[list[int]], limits: Sequence[int], settings: SearchSettings
    ) -> list[list[Found]]:
        """
        The same hypotheses stay in the beam of CTranslate2 as in that of transformers. It differs in when a search
        ends, and does not tell what still ran then. So a first search finds where `num_beams` hypotheses have
        finished, and others that are cut there, or at the steps behind it, show where transformers' would have ended.
        """
        beams = Beams(sources, starts, self._firsts(sources, starts, settings), settings)
        longest = max(limits)
        rows = self._finished(beams, range(len(sources)), longest, JUST_ENOUGH)
        endings = [Ending(settings, own, longest, row) for own, row in zip(limits, rows, strict=True)]
        for ending, row in zip(endings, rows, strict=True):  # where the first search is enough
            step = end_of(row, settings.num_beams)
            is_end = settings.of("early_stopping") is True and step < ending.limit
            if beams.drops_the_worst and (is_end or step == ending.limit == longest):
                ending.see(step, row, self.eos)
        self._find(endings, beams)
        return [[Found(list(one.token_ids), one.score) for one in ending.kept()] for ending in endings]

    def _find(self, endings: Sequence[Ending], beams: "Beams") -> None:
        """Look at the searches until it is certain where each of them ends."""
        steps = steps_to_see(endings, range(len(endings)))
        for looks in count(min(LOOKS_AHEAD) if hopes_for_longer(beams.settings) else 0):
            if not steps:
                return
            if looks in LOOKS_AHEAD:
                self._look_ahead(endings, beams, list(steps), LOOKS_AHEAD[looks])
                steps = steps_to_see(endings, steps)
            for step in sorted(set(steps.values())):
                places = [place for place in steps if steps[place] == step]
                # At most num_beams finish in a step: all are told of.
                for place, row in zip(places, self._finished(beams, places, step, step + 1), strict=True):
                    endings[place].see(step, row, self.eos)
            steps = steps_to_see(endings, steps)

    def _look_ahead(self, endings: Sequence[Ending], beams: "Beams", places: Sequence[int], patience: float) -> None:
        """So that steps at which hypotheses ran that finish later, and well, need not be looked at."""
        limit, width = max(endings[place].limit for place in places), beams.settings.num_beams
        rows = self._finished(beams, places, limit, min(patience, limit + 1))
        later = [[one for one in row if one.length > end_of(row, width)] for row in rows]
        asked = [{*best(row, 1), *sorted(row, key=lambda one: (one.length, one.total))[-1:]} for row in later]
        sources = [beams.sources[place] for place, row in zip(places, asked, strict=True) for _ in row]
        targets = [one.token_ids for row in asked for one in row]
        scored = iter(self.log_probabilities(sources, targets, MAX_SOURCE_TOKENS) if targets else [])
        for place, row, of_row in zip(places, rows, asked, strict=True):
            endings[place].hint(row, {one: next(scored)[beams.forced :] for one in of_row})
            if patience > limit == endings[place].limit:
                endings[place].see(limit, row, self.eos)

    def _firsts(
        self, sources: Sequence[list[int]], starts: Sequence[list[int]], settings: SearchSettings
    ) -> list["First"]:
        """
        What becomes of <eos> directly behind a forced beginning. There, CTranslate2 loses it, and a place of the beam
        with it. So it is forbidden there, by which the probabilities of all hypotheses grow by the same factor.
        """
        if not starts[0]:
            return [First(0.0, None)] * len(sources)
        width, forced, firsts = settings.num_beams, len(starts[0]), []
        ended = [[*start, self.eos] for start in starts]
        options = {"beam_size": width, "num_hypotheses": width, "patience": JUST_ENOUGH, "length_penalty": 0}
        steps = self._translate(sources, starts, 1, **options, min_decoding_length=forced + 1)
        for target, row, step in zip(
            ended, self.log_probabilities(sources, ended, MAX_SOURCE_TOKENS), steps, strict=True
        ):
            end = row[forced]
            share = math.log1p(-math.exp(min(end, -1e-9)))
            is_candidate = end > min(total for _, total in step) + share
            firsts.append(First(share, FinishedHypothesis(tuple(target), 1, end, end) if is_candidate else None))
        return firsts

    def _finished(
        self, beams: "Beams", places: Sequence[int], limit: int, patience: float
    ) -> list[list[FinishedHypothesis]]:
        """The hypotheses that come to their end, or to the limit, while `patience * num_beams` are waited for."""
        number, forced, exponent = int(beams.settings.num_beams * patience), beams.forced, beams.settings.length_penalty
        options = {"beam_size": beams.settings.num_beams, "patience": patience, "num_hypotheses": number}
        options |= {"length_penalty": float(exponent), "min_decoding_length": forced + 1 if forced else 0}
        sources, starts = ([each[place] for place in places] for each in (beams.sources, beams.starts))
        rows = self._translate(sources, starts, limit, **options)

        def hypothesis(target: list[int], score: float, share: float) -> FinishedHypothesis:
            length, total = len(target) - forced, score * len(target) ** float(exponent) + share
            return FinishedHypothesis(tuple(target), length, total, total / length**exponent)

        return [
            [*([first.ended] if first.ended else []), *(hypothesis(*one, first.share) for one in row)]
            for row, first in zip(rows, (beams.firsts[place] for place in places), strict=True)
        ]


@dataclass(frozen=True)
class Beams:
    """
    What a search with beams is for.

    Args:
        firsts: What becomes of <eos> at the first step of each source.
    """

    sources: Sequence[list[int]]
    starts: Sequence[list[int]]
    firsts: Sequence["First"]
    settings: SearchSettings

    @property
    def forced(self) -> int:
        return len(self.starts[0])

    @property
    def drops_the_worst(self) -> bool:
        """Whether those that a search has dropped, of more than it waited for, are worse by our length penalty, too."""
        return not self.forced and not isinstance(self.settings.length_penalty, GNMTLengthPenalty)


def steps_to_see(endings: Sequence[Ending], places: Iterable[int]) -> dict[int, int]:
    steps = ((place, endings[place].step_to_see()) for place in places)
    return {place: step for place, step in steps if step is not None}


@dataclass(frozen=True)
class First:
    """
    The first step behind a forced beginning.

    Args:
        share: What forbidding <eos> there has to be undone by, as a logarithm.
        ended: The target that ends there, if that is among the best candidates.
    """

    share: float
    ended: FinishedHypothesis | None

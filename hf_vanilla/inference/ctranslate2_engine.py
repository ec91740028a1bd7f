"""CTranslate2 as an engine: it finds hypotheses, of which those that transformers' search keeps are chosen."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from ..models.generation_vanilla import GNMTLengthPenalty
from ..run_directory import MODEL_CONFIG
from .engine import EngineError, Found
from .finished import Ending, FinishedHypothesis, best, end_of
from .search_settings import SearchSettings, asks_for_nothing

MAX_SOURCE_TOKENS = 2_000  # of a batch: in larger ones there would be none for some of the threads
PATIENCE = (2, 4, 8, 16, 64)
"""So many times num_beams hypotheses are waited for, one after the other, until the search is seen to have ended."""

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
        search: Any = self._greedy if settings.num_beams == 1 else self._beams
        found: list[list[Found]] = [[]] * len(sources)

        def run(places: list[int], limit: int) -> list[int]:
            """Search with one limit of length for all. Returns those that would have been cut by their own before."""
            of_places: list[Any] = [[each[place] for place in places] for each in (sources, starts, limits)]
            rows = search(*of_places, limit, settings, max(limits))
            for place, row in zip(places, rows, strict=True):
                found[place] = row
            return [place for place in places if not found[place]]

        cut = sorted(run(list(range(len(sources))), max(limits)), key=lambda place: limits[place])
        for limit, group in groupby(cut, key=lambda place: limits[place]):
            run(list(group), limit)
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

    def _greedy(
        self,
        sources: list[list[int]],
        starts: list[list[int]],
        limits: list[int],
        limit: int,
        settings: SearchSettings,
        _: int,
    ) -> list[list[Found]]:
        """As `_beams`."""
        forced = len(starts[0])
        rows = self._translate(sources, starts, limit, beam_size=1, **self._greedy_options(settings, forced))
        targets = [row[0][0] for row in rows]
        scores = [math.nan] * len(targets)
        if settings.has_scores:  # what is forbidden has a share in them
            for place, row in enumerate(self.log_probabilities(sources, targets, MAX_SOURCE_TOKENS)):
                scores[place] = math.fsum(row[forced:]) / max(1, len(row) - forced) ** settings.length_penalty
        return [
            [] if own < limit and len(target) - forced >= own else [Found(target, score)]
            for target, score, own in zip(targets, scores, limits, strict=True)
        ]

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

    def _beams(
        self,
        sources: list[list[int]],
        starts: list[list[int]],
        limits: list[int],
        limit: int,
        settings: SearchSettings,
        longest: int,
    ) -> list[list[Found]]:
        """
        The same hypotheses stay in the beam of CTranslate2 as in that of transformers. It differs in when a search
        ends: here after `patience * num_beams` finished ones, there when nothing that still runs could be among the
        best. So more than enough are waited for. Those that finish later tell at which step that may have been, and
        a search that is cut there shows what ran. (Where all that the cut search shows has ended, only
        `early_stopping="never"` asks for more, and those that finish later have to tell it.)

        Args:
            limits: Those of the sentences. Where one is reached, and is less than `limit`, there is nothing.
        """
        found: list[list[Found]] = [[]] * len(sources)
        todo, firsts = list(range(len(sources))), self._firsts(sources, starts, settings)
        for patience in patience_of(settings, len(starts[0])):
            batch = Beams(sources, starts, firsts, patience, settings)
            for place in todo:
                found[place] = []  # also where an earlier round did not reach the limit
            rows = {
                place: row
                for place, row in zip(todo, self._finished(batch, todo, limit), strict=True)
                if limits[place] == limit or max(one.length for one in row) < limits[place]
            }
            endings = self._endings(batch, rows, longest)
            todo = []
            for place, ending in endings.items():
                end = ending.step()
                found[place] = [Found(list(one.token_ids), one.score) for one in ending.kept(end)]
                # Else the limit ended it. Of more than were waited for, the worst are not told of.
                if end is None and len(rows[place]) >= batch.number:
                    todo.append(place)
            if not todo:
                break
        return found

    def _endings(self, batch: "Beams", rows: dict[int, list[FinishedHypothesis]], longest: int) -> dict[int, Ending]:
        """For each place of `rows` where transformers' search ends, as far as that is known."""
        prefixes = self._prefixes(batch, rows)
        endings = {place: Ending(batch.settings, longest, row, prefixes[place]) for place, row in rows.items()}
        uncertain = endings
        while uncertain:
            steps = {
                place: step for place, ending in uncertain.items() if (step := ending.uncertain_step()) is not None
            }
            uncertain = {place: endings[place] for place in steps}
            cut = replace(batch, patience=batch.patience + 1)  # so that all are told of
            for step in sorted(set(steps.values())):
                places = [place for place in steps if steps[place] == step]
                for place, row in zip(places, self._finished(cut, places, step), strict=True):
                    endings[place].see(step, row, self.eos)
        return endings

    def _firsts(self, sources: list[list[int]], starts: list[list[int]], settings: SearchSettings) -> list["First"]:
        """
        What becomes of <eos> directly behind a forced beginning. There, CTranslate2 loses it, and a place of the beam
        with it. So it is forbidden there, by which the probabilities of all hypotheses grow by the same factor.
        """
        if not starts[0]:
            return [First(0.0, None)] * len(sources)
        width, forced, firsts = settings.num_beams, len(starts[0]), []
        ended = [[*start, self.eos] for start in starts]
        options = {"beam_size": width, "num_hypotheses": width, "patience": 1.01, "length_penalty": 0}
        steps = self._translate(sources, starts, 1, **options, min_decoding_length=forced + 1)
        for target, row, step in zip(ended, self.log_probabilities(sources, ended, 2000), steps, strict=True):
            end = row[forced]
            share = math.log1p(-math.exp(min(end, -1e-9)))
            is_candidate = end > min(total for _, total in step) + share
            firsts.append(First(share, FinishedHypothesis(tuple(target), 1, end, end) if is_candidate else None))
        return firsts

    def _finished(self, batch: "Beams", places: list[int], limit: int) -> list[list[FinishedHypothesis]]:
        """All hypotheses that come to their end, or to the limit, while `batch.number` of them are waited for."""
        settings, forced = batch.settings, len(batch.starts[0])
        theirs, exponent = their_penalty(settings, forced), settings.length_penalty
        options = {"beam_size": settings.num_beams, "patience": batch.patience, "num_hypotheses": batch.number}
        options |= {"length_penalty": theirs, "min_decoding_length": forced + 1 if forced else 0}
        sources, starts = ([each[place] for place in places] for each in (batch.sources, batch.starts))
        rows = self._translate(sources, starts, limit, **options)

        def hypothesis(target: list[int], score: float, share: float) -> FinishedHypothesis:
            length, total = len(target) - forced, score * len(target) ** theirs + share
            return FinishedHypothesis(tuple(target), length, total, total / length**exponent)

        return [
            [*([first.ended] if first.ended else []), *(hypothesis(*one, first.share) for one in row)]
            for row, first in zip(rows, (batch.firsts[place] for place in places), strict=True)
        ]

    def _prefixes(
        self, batch: "Beams", rows: dict[int, list[FinishedHypothesis]]
    ) -> dict[int, dict[FinishedHypothesis, list[float]]]:
        """The log-probability of each token that was not forced, of those hypotheses by which endings are judged."""
        asked = [(place, one) for place, row in rows.items() for one in later_ones(row, batch.settings)]
        sources, targets = [batch.sources[place] for place, _ in asked], [one.token_ids for _, one in asked]
        found: dict[int, dict[FinishedHypothesis, list[float]]] = {place: {} for place in rows}
        if asked:
            scored = self.log_probabilities(sources, targets, MAX_SOURCE_TOKENS)
            for (place, one), row in zip(asked, scored, strict=True):
                found[place][one] = row[len(batch.starts[0]) :]
        return found


@dataclass(frozen=True)
class Beams:
    """
    What a search with beams is for.

    Args:
        firsts: What becomes of <eos> at the first step of each source.
        patience: How many times `num_beams` finished hypotheses to wait for.
    """

    sources: Sequence[list[int]]
    starts: Sequence[list[int]]
    firsts: Sequence["First"]
    patience: float
    settings: SearchSettings

    @property
    def number(self) -> int:
        return int(self.settings.num_beams * self.patience)


def patience_of(settings: SearchSettings, forced: int) -> Sequence[float]:
    """How many times num_beams finished hypotheses to wait for, one after the other until that was enough."""
    if settings.of("early_stopping") is not True:
        return PATIENCE
    # A little more than 1: CTranslate2 ends with the first one if it is 1 and there is no penalty.
    return (3,) if forced or isinstance(settings.length_penalty, GNMTLengthPenalty) else (1.01,)


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


def their_penalty(settings: SearchSettings, forced: int) -> float:
    """
    The exponent of CTranslate2's length penalty, by which it drops the worst of more hypotheses than it waited for. It
    counts forced tokens, and does not know GNMT's penalty; then it should at least drop the right ones.
    """
    is_gnmt = isinstance(settings.length_penalty, GNMTLengthPenalty)
    if settings.of("early_stopping") is True and (forced or is_gnmt):
        return 0.0  # the first to finish are what counts
    return float(settings.length_penalty) * (0.6 if is_gnmt else 1.0)


def later_ones(row: list[FinishedHypothesis], settings: SearchSettings) -> list[FinishedHypothesis]:
    """
    Hypotheses whose first tokens say whether transformers' search had gone on: all that finished after `num_beams`
    others had if one of them would be among the best, else the last ones.
    """
    if settings.of("early_stopping") is True:
        return []
    full = end_of(row, settings.num_beams)
    last = max(one.length for one in row)
    is_about_more = any(one.length > full for one in best(row, settings.number))
    return [one for one in row if one.length > full and (is_about_more or one.length == last)]

"""Texts to texts: reads them in windows, sorts each window by length, searches, and restores the order."""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby, zip_longest
from pathlib import Path
from typing import Any, Self, TypeVar, overload

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from ..data.errors import InvalidDataError, TextWarning
from ..data.tokenizer import Encoder
from ..hub_name import folder_of
from ..weights import check_model, check_tokenizer
from .batching import batches_by_length
from .beginnings import Beginning, Beginnings
from .columns import columns_in, columns_of
from .engine import Engine, EngineError, Found
from .exported import is_export, load_export
from .lines import Line, Parts, size_of, texts_of_open_file, windows
from .scoring import Score, normalised
from .search_settings import SearchSettings
from .torch_engine import TorchEngine

Source = str | Sequence[str]
"""A text, or the parts of a source if the model was trained on several columns."""

OneSource = str | tuple[str, ...]
"""What is a single source where several may be given, too."""

Answer = TypeVar("Answer")

LONE_SURROGATES = re.compile(
    "[\ud800-\udfff]"
)  # halves of characters, which Python allows in a text and UTF-8 does not
MAX_TOKENS = 16_384
MAX_SOURCE_LENGTH = 1024
OF_HUB = ("revision", "token", "cache_dir", "local_files_only", "force_download")
"""Arguments of `from_pretrained` that say how to download; a directory needs none of them."""
ENDED = object()  # stands where one of two inputs has no more items
MAX_SAMPLED_LOGITS = 2**24  # of one step: sampling sorts them, so that they are there several times


class LongSourceWarning(TextWarning):
    pass


class ColumnsWarning(TextWarning):
    pass


@dataclass(frozen=True)
class Hypothesis:
    """
    One translation of a source.

    Args:
        score: Its log-probability divided by the length penalty, by which beam search ranks. A forced beginning counts
            for neither. NaN where scores were not asked for.
        token_ids: The whole target, <eos> included if it has come to its end.
    """

    text: str
    score: float = math.nan
    token_ids: list[int] = field(default_factory=list)


class Translator:
    """
    Translates with the model's own generation config. Options of a call are keys of the generation config.

    Args:
        model: A model, or another engine that has its weights.
        max_tokens: Padded source tokens of a batch, times the hypotheses of each sentence: what memory allows.
        max_source_length: Of longer sources only the first so many tokens are used. Learned positions may allow fewer.
        columns: How many parts a source has. A text for a model with several is split at tabs.
    """

    def __init__(
        self,
        model: PreTrainedModel | Engine,
        tokenizer: PreTrainedTokenizerFast,
        max_tokens: int | None = None,
        max_source_length: int | None = None,
        columns: int | None = None,
    ):
        is_model = isinstance(model, PreTrainedModel)
        self.engine: Engine = TorchEngine(model, tokenizer.pad_token_id, tokenizer.eos_token_id) if is_model else model
        self.tokenizer = tokenizer
        self.encoder = Encoder(tokenizer)
        self.beginnings = Beginnings(self.encoder)
        self.max_tokens = max_tokens or MAX_TOKENS
        self.columns = columns or columns_in(tokenizer) or 1
        limits = (max_source_length or MAX_SOURCE_LENGTH, self.engine.positions)
        self.max_source_length = min(limit for limit in limits if limit)

    @property
    def model(self) -> PreTrainedModel:
        """The model itself, which only the engine of PyTorch has."""
        if isinstance(self.engine, TorchEngine):
            return self.engine.model
        raise EngineError(
            "this needs the model itself, not an export of it: give the run that the export was made from"
        )

    @classmethod
    def from_pretrained(
        cls,
        run: str | Path,
        *,
        max_tokens: int | None = None,
        max_source_length: int | None = None,
        **model_arguments: Any,
    ) -> Self:
        """
        Load a run directory, an export to CTranslate2, or `user/name` or `user/name@revision` from the Hub, onto the
        GPU if there is one.

        `model_arguments` are those of `AutoModelForSeq2SeqLM.from_pretrained`, such as `dtype=torch.bfloat16`.
        """
        of_hub = {name: model_arguments.pop(name) for name in OF_HUB if name in model_arguments}
        run = folder_of(run, **of_hub)
        if is_export(Path(run)):
            engine, export_tokenizer, columns = load_export(Path(run), **model_arguments)
            return cls(engine, export_tokenizer, max_tokens, max_source_length, columns)
        check_model(Path(run), bool(model_arguments.get("trust_remote_code")))
        model = loaded(AutoModelForSeq2SeqLM, run, **model_arguments)
        if torch.accelerator.is_available() and "device_map" not in model_arguments:
            model.to(torch.accelerator.current_accelerator())
        tokenizer = loaded(AutoTokenizer, run)
        check_tokenizer(run, tokenizer, model.config.vocab_size)
        columns = columns_of(tokenizer, Path(run))
        return cls(model.eval(), tokenizer, max_tokens, max_source_length, columns)

    @overload
    def translate(self, texts: OneSource, **options: Any) -> str: ...
    @overload
    def translate(self, texts: Sequence[Source], **options: Any) -> list[str]: ...
    @overload
    def translate(self, texts: Iterable[Source], **options: Any) -> Iterator[str]: ...
    def translate(self, texts: Any, *, target_prefixes: Any = None, **options: Any) -> Any:
        """
        The translation of a text; or those of several, in their order.

        A string or a tuple (the parts of one source) gives a string. A list, or another sequence such as a column of a
        `datasets.Dataset`, gives a list. An open file, a generator or any other iterable gives an iterator, which reads
        a window of some thousand texts when the first of its translations is asked for.

        Args:
            target_prefixes: What each translation begins with, word for word ("Mann" does not become "Mannschaft").
            options: Those of `search`.
        """
        return self._each(
            texts, target_prefixes, lambda lines: [best.text for best, *_ in self.search(lines, **options)]
        )

    @overload
    def hypotheses(self, texts: OneSource, **options: Any) -> list[Hypothesis]: ...
    @overload
    def hypotheses(self, texts: Sequence[Source], **options: Any) -> list[list[Hypothesis]]: ...
    @overload
    def hypotheses(self, texts: Iterable[Source], **options: Any) -> Iterator[list[Hypothesis]]: ...
    def hypotheses(self, texts: Any, *, target_prefixes: Any = None, **options: Any) -> Any:
        """
        As `translate`, with the `num_return_sequences` best translations of each text and their scores, best first.

        Without `num_beams` the search is as wide as it has to be for them.
        """
        return self._each(texts, target_prefixes, partial(self.search, with_scores=True, **options))

    @overload
    def score(self, texts: OneSource, targets: str, prefix: str = "") -> Score: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Sequence[Source], targets: Iterable[str], prefix: str = "") -> list[Score]: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Iterable[Source], targets: Iterable[str], prefix: str = "") -> Iterator[Score]: ...
    def score(self, texts: Any, targets: Any, prefix: str = "") -> Any:
        """How probable these targets are, each as a translation of its text."""
        return self._each(texts, targets, partial(self.score_lines, prefix=prefix))

    def search(
        self,
        lines: Sequence[Line],
        *,
        prefix: str = "",
        seed: int | None = None,
        with_scores: bool = False,
        **generation: Any,
    ) -> list[list[Hypothesis]]:
        """
        The best translations of some lines. An empty line has an empty one, and a forced beginning of more than
        `max_source_length` tokens is not continued.

        Args:
            prefix: What the sources of this direction or task began with in the training.
            seed: With `do_sample=True`: lines with the same numbers get the same random numbers again, in whatever
                batches or processes. If not given, it is drawn from PyTorch's.
            generation: Keys of the generation config.
        """
        engine = self.engine
        search = SearchSettings(engine.generation_config, engine.positions, generation, seed, with_scores)
        engine.check(search)
        sources = self.encode_batch([line.parts for line in lines], prefix, [line.number for line in lines])
        starts = self.beginnings.of([well_formed(line.target) for line in lines])
        found = [[Hypothesis(line.target, 0.0)] * search.number for line in lines]
        filled = [
            place
            for place, line in enumerate(lines)
            if any(part.strip() for part in line.parts) and len(starts[place].token_ids) < self.max_source_length
        ]
        for batch in self._batches(filled, sources, starts, search):
            begun, numbers = [starts[place] for place in batch], [lines[place].number for place in batch]
            suppressed = self.beginnings.suppressed(begun[0].end)  # the others end alike
            forced = [list(one.token_ids) for one in begun]
            rows = engine.search([sources[place] for place in batch], forced, numbers, search, suppressed)
            for place, answers in zip(batch, self._with_texts(rows), strict=True):
                found[place] = answers
        if with_scores and not search.has_scores:
            found = self._scored(found, sources, starts, search)
        return found

    def score_lines(self, lines: Sequence[Line], prefix: str = "") -> list[Score]:
        """The scores of lines whose targets are known. NaN for targets that are too long for the model."""
        sources = self.encode_batch([line.parts for line in lines], prefix, [line.number for line in lines])
        targets = self.encoder.targets([well_formed(line.target) for line in lines])
        limit = self.max_source_length
        short = [place for place, target in enumerate(targets) if len(target) <= limit]
        if len(short) < len(lines):
            place = next(place for place, target in enumerate(targets) if len(target) > limit)
            warnings.warn(
                f"target {lines[place].number} has {len(targets[place]):,} tokens, more than the limit of {limit:,}; "
                "its score, and that of others like it, is NaN",
                LongSourceWarning,
                stacklevel=2,
            )
        exponent = SearchSettings(self.engine.generation_config, None, {}).length_penalty
        each = self.engine.log_probabilities([sources[p] for p in short], [targets[p] for p in short], self.max_tokens)
        scores = [Score(math.nan, math.nan, self.tokenizer.convert_ids_to_tokens(ids), []) for ids in targets]
        for place, row in zip(short, each, strict=True):
            total = math.fsum(row)
            scores[place] = Score(total, normalised(total, len(row), exponent), scores[place].tokens, row)
        return scores

    def encode_batch(
        self, sources: Sequence[Source], prefix: str = "", numbers: Sequence[int] | None = None
    ) -> list[list[int]]:
        """Token ids of sources as the model was trained on them, cut to `max_source_length`, with <eos>."""
        parts = [tuple(map(well_formed, [source] if isinstance(source, str) else source)) for source in sources]
        encoded = self.encoder.sources(parts, prefix)
        limit = self.max_source_length
        first = next((place for place, ids in enumerate(encoded) if len(ids) > limit), None)
        if first is not None:
            number = first + 1 if numbers is None else numbers[first]
            warnings.warn(
                f"source {number} has {len(encoded[first]):,} tokens; of it, and of others like it, only the first "
                f"{limit:,} are used",
                LongSourceWarning,
                stacklevel=2,
            )
        return [ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]] for ids in encoded]

    def _each(self, texts: Any, targets: Any, answer: Callable[[list[Line]], list[Answer]]) -> Any:
        if isinstance(texts, str | tuple):
            targets = [targets] if isinstance(targets, str) else targets
            return answer(list(self._lines([texts], targets)))[0]
        if isinstance(targets, str):
            raise TypeError(f"{targets!r:.40} is one target, and there may be several sources: give one for each")
        lines = self._lines(texts, targets)
        answers = chain.from_iterable(map(answer, windows(lines, size_of)))
        return list(answers) if isinstance(texts, Sequence) else answers

    def _lines(self, texts: Any, targets: Any) -> Iterator[Line]:
        if isinstance(texts, bytes | bytearray):
            raise TypeError("bytes are no text: give their .decode()")
        if isinstance(texts, io.IOBase):
            texts = texts_of_open_file(texts)
        if targets is None:
            yield from (Line(number, self.columns_of(text, number)) for number, text in enumerate(texts, 1))
            return
        pairs: Any = zip_longest(texts, targets, fillvalue=ENDED)
        for number, (text, target) in enumerate(pairs, 1):
            if text is ENDED or target is ENDED:
                ended, other = ("sources", "targets") if text is ENDED else ("targets", "sources")
                raise ValueError(f"there are {number - 1} {ended}, and more {other} than that")
            yield Line(number, self.columns_of(text, number), target)

    def columns_of(self, text: Source, number: int) -> Parts:
        """The parts of a source. A text for a model with several columns is split at tabs."""
        if not isinstance(text, str):
            parts = tuple(text) if isinstance(text, Sequence) and not isinstance(text, bytes) else (text,)
            if not parts or not all(isinstance(part, str) for part in parts):
                kind = type(next((part for part in parts if not isinstance(part, str)), text)).__name__
                raise TypeError(f"source {number} has a {kind}: give a text, or the texts of its columns")
            return parts
        if self.columns == 1:
            return (text,)
        parts = tuple(text.split("\t", self.columns - 1))
        if len(parts) < self.columns and text.strip():
            warnings.warn(
                f"source {number} has {len(parts)} columns, separated by tabs, and the model was trained on "
                f"{self.columns}; the others, here and in later lines, are taken to be empty",
                ColumnsWarning,
                stacklevel=2,
            )
        return (*parts, *[""] * (self.columns - len(parts)))

    def _batches(
        self, places: Sequence[int], sources: list[list[int]], starts: list[Beginning], search: SearchSettings
    ) -> Iterator[list[int]]:
        """Lines that are searched together: of about the same length, and with beginnings of the same kind."""

        def kind(place: int) -> tuple[int, str]:
            return len(starts[place].token_ids), starts[place].end.name

        rows = max(search.num_beams, search.number)
        logits = MAX_SAMPLED_LOGITS // self.engine.vocab_size if search.is_sampling else None
        most = None if logits is None else max(1, logits // rows)
        for _, group in groupby(sorted(places, key=kind), key=kind):
            members = list(group)
            for batch in batches_by_length([len(sources[place]) for place in members], self.max_tokens // rows, most):
                yield [members[place] for place in batch]

    def _with_texts(self, rows: list[list[Found]]) -> list[list[Hypothesis]]:
        flat = [one for row in rows for one in row]
        texts = iter(self.tokenizer.batch_decode([one.token_ids for one in flat], skip_special_tokens=True))
        return [[Hypothesis(next(texts), one.score, one.token_ids) for one in row] for row in rows]

    def _scored(
        self,
        found: list[list[Hypothesis]],
        sources: list[list[int]],
        starts: list[Beginning],
        search: SearchSettings,
    ) -> list[list[Hypothesis]]:
        """
        The same samples with their scores: by the model's own probabilities, whatever they were drawn from.
        """
        flat = [(place, hypothesis) for place, each in enumerate(found) for hypothesis in each if hypothesis.token_ids]
        targets = [hypothesis.token_ids for _, hypothesis in flat]
        rows = self.engine.log_probabilities([sources[place] for place, _ in flat], targets, self.max_tokens)
        scores = iter(rows)

        def scored(place: int, hypothesis: Hypothesis) -> Hypothesis:
            if not hypothesis.token_ids:
                return hypothesis
            row = next(scores)[len(starts[place].token_ids) :]
            score = normalised(math.fsum(row), len(row), search.length_penalty) if row else 0.0
            return Hypothesis(hypothesis.text, score, hypothesis.token_ids)

        return [[scored(place, hypothesis) for hypothesis in each] for place, each in enumerate(found)]


def loaded(kind: Any, run: Path, **arguments: Any) -> Any:
    """By one of transformers' Auto classes, whose errors do not name the directory."""
    try:
        return kind.from_pretrained(run, **arguments)
    except InvalidDataError:
        raise
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise InvalidDataError(f"{run}: cannot be loaded as {kind.__name__}: {reason}") from error


def translate_each(
    translator: Translator, sources: Sequence[Sequence[str]], prefixes: Sequence[str], **options: Any
) -> list[str]:
    """Translations of sources that may have different prefixes, in their order: all of one prefix together."""
    translations = [""] * len(sources)
    for prefix in dict.fromkeys(prefixes):
        places = [place for place, other in enumerate(prefixes) if other == prefix]
        found = translator.translate([sources[place] for place in places], prefix=prefix, **options)
        for place, translation in zip(places, found, strict=True):
            translations[place] = translation
    return translations


def well_formed(text: str) -> str:
    """The text as UTF-8 can have it: tokenizers refuse others."""
    return LONE_SURROGATES.sub("\ufffd", text)

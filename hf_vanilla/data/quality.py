"""Finds what is probably wrong with a corpus: copies, broken characters, other languages, shifted lines, ..."""

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np

from .corpus import Corpus, Pair, read_pairs

# What UTF-8 looks like where it was read as Latin-1 or Windows-1252, and what stands for a character that was lost.
BROKEN = re.compile("\ufffd|[\u00c2\u00c3][\u0080-\u00bf\u0152-\u2122]|\u00e2\u20ac")
FAR_OFF = 4.0  # a ratio of lengths is suspicious if it differs from the median by this factor
BLOCK = 1000  # pairs that are compared at a time to find a shift of lines
LETTERS = 40  # how many letters of a text are looked at to find its script
NO_SCRIPT = ""


@dataclass(frozen=True)
class Finding:
    """Something that is probably wrong, and what to do about it."""

    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}: {self.advice}"


class Split:
    """A split, of which only a few numbers per pair are kept in memory: lengths, hashes and scripts."""

    def __init__(self, name: str, corpora: Sequence[Corpus]):
        self.name = name
        self.corpora = corpora
        pairs = array("q")
        lengths, scripts = array("l"), array("l")
        copies, broken = array("b"), array("b")
        self.scripts = [NO_SCRIPT]  # all that occur; `script_ids` are indices into this list
        for pair in read_pairs(corpora):
            source = "\t".join(pair.source)
            pairs.append(hash((pair.prefix, source, pair.target)))
            lengths.extend((len(source), len(pair.target)))
            scripts.extend((self._script(source), self._script(pair.target)))
            copies.append(source == pair.target)
            broken.append(bool(BROKEN.search(source) or BROKEN.search(pair.target)))
        self.pairs = np.array(pairs)
        self.lengths, self.script_ids = np.array(lengths).reshape(-1, 2), np.array(scripts).reshape(-1, 2)
        self.copies, self.broken = np.array(copies, dtype=bool), np.array(broken, dtype=bool)

    def __len__(self) -> int:
        return len(self.pairs)

    def pair(self, index: int) -> Pair:
        return next(islice(read_pairs(self.corpora), int(index), None))

    def example(self, which: np.ndarray) -> str:
        """Place and first words of the first pair for which `which` is true."""
        pair = self.pair(int(which.argmax()))
        return f"{pair.where} ({' | '.join(pair.source)[:60]!r} -> {pair.target[:60]!r})"

    def _script(self, text: str) -> int:
        script = script_of(text)
        if script not in self.scripts:
            self.scripts.append(script)
        return self.scripts.index(script)


def script_of(text: str) -> str:
    """The script of most letters, by its name in Unicode; NO_SCRIPT if there are no letters."""
    scripts = Counter(_script_of_letter(letter) for letter in islice(filter(str.isalpha, text), LETTERS))
    return scripts.most_common(1)[0][0] if scripts else NO_SCRIPT


@lru_cache(maxsize=100_000)
def _script_of_letter(letter: str) -> str:
    script = unicodedata.name(letter, "").partition(" ")[0]
    return "CJK" if script in ("HIRAGANA", "KATAKANA", "HALFWIDTH") else script


def findings_in(split: Split, languages: tuple[str | None, str | None]) -> Iterator[Finding]:
    """What is probably wrong within a split, each with its first example."""
    if None not in languages and languages[0] != languages[1]:
        yield from _found(split, split.copies, 0.01, "have a target that is a copy of the source", "take them out")
    yield from _found(split, split.broken, 0.001, "have broken characters", "read the text again in its own encoding")
    yield from _found(split, repeated(split.pairs), 0.2, "occur before in the same split", "take the repetitions out")
    odd = f"have a target that is over {FAR_OFF:g} times longer or shorter than usual for the source"
    yield from _found(split, far_off(split.lengths), 0.01, odd, "see whether they belong together")
    for side, name in enumerate(("source", "target")):
        scripts = split.script_ids[:, side]
        usual = usual_script(scripts)
        if usual is not None:
            others = (scripts != usual) & (scripts != 0)
            foreign = f"have a {name} that is not in {split.scripts[usual].capitalize()} script"
            yield from _found(split, others, 0.005, foreign, "take out what is in another language")
    shifted = first_shifted_block(split.lengths)
    if shifted is not None:
        yield Finding(
            f"{split.name}: from about {split.pair(shifted).where} on, lengths fit those of neighbouring lines better",
            "the files seem to be shifted against each other by a line",
        )


def findings_between(training: Split, other: Split) -> Iterator[Finding]:
    """Pairs of validation or test data that are among the training pairs too, and prefixes that are not."""
    known = sorted({corpus.prefix for corpus in training.corpora})
    learnt = " or ".join(map(repr, known))
    for corpus in other.corpora:
        if corpus.prefix not in known:
            yield Finding(
                f"{other.name}: sources have the prefix {corpus.prefix!r}, and in training {learnt}",
                f"set data.{other.name}.prefix to what the model learns",
            )
    yield from _found(
        *(other, np.isin(other.pairs, training.pairs), 0.005),
        "are in the training pairs too",
        "take them out of the training pairs, or the scores will say nothing",
    )


def _found(split: Split, which: np.ndarray, tolerated: float, what: str, advice: str) -> Iterator[Finding]:
    count = int(which.sum())
    if count > tolerated * len(split):
        yield Finding(f"{split.name}: {count:,} of {len(split):,} pairs {what}; first {split.example(which)}", advice)


def repeated(values: np.ndarray) -> np.ndarray:
    """True for each value that occurred before."""
    found = np.ones(len(values), dtype=bool)
    found[np.unique(values, return_index=True)[1]] = False
    return found


def far_off(lengths: np.ndarray) -> np.ndarray:
    """True where the ratio of lengths is far from the median. Short texts are not judged: any ratio is usual there."""
    ratios = np.log(np.maximum(lengths, 1)) @ (1, -1)
    return (np.abs(ratios - np.median(ratios)) > np.log(FAR_OFF)) & (lengths.max(axis=1) > 20) & (lengths.min(1) > 0)


def usual_script(scripts: np.ndarray) -> int | None:
    """The script of nearly all texts that have letters, if there is one."""
    lettered = scripts[scripts != 0]
    if len(lettered) == 0:
        return None
    counts = np.bincount(lettered)
    return int(counts.argmax()) if counts.max() > 0.8 * len(lettered) else None


def first_shifted_block(lengths: np.ndarray) -> int | None:
    """The first block in which source lengths go with target lengths one line off better than with their own."""
    logs = np.log(np.maximum(lengths, 1))
    for start in range(0, len(logs) - BLOCK // 4, BLOCK):
        source, target = logs[start : start + BLOCK].T
        neighbours = max(correlation(source[:-1], target[1:]), correlation(source[1:], target[:-1]))
        if neighbours > max(0.4, correlation(source, target) + 0.3):
            return start
    return None


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    deviations = a.std() * b.std()
    return float(((a - a.mean()) * (b - b.mean())).mean() / deviations) if deviations else 0.0


def all_findings(
    training: Split, others: Iterable[Split], languages: tuple[str | None, str | None]
) -> Iterator[Finding]:
    yield from findings_in(training, languages)
    for other in others:
        yield from findings_in(other, languages)
        yield from findings_between(training, other)

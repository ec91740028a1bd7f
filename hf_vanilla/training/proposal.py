"""
A recipe that fits a text: from what its pairs are like to tokenizer, model and training.

Each number is decided by one function or table below, with the reason beside it. What the keys do is explained in
`configs/own_text.yaml`, into which own_text.py writes these values.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ..data.corpus import Pair
from ..data.errors import InvalidDataError
from ..data.quality import script_of
from . import shipped

Values = dict[str, dict[str, Any]]  # of the keys in each section

LOOKED_AT = 200_000  # pairs whose words are counted; the others are only read
WORD = re.compile(r"[^\W\d]+|\d|[^\w\s]+")  # what byte-pair encoding never crosses: words, each digit, punctuation
SCRIPTS_WITHOUT_SPACES = ("CJK", "THAI", "LAO", "KHMER", "MYANMAR")


@dataclass(frozen=True)
class Facts:
    """
    What pairs are like, in columns that are no symbols.

    Args:
        pairs: Their number.
        sources: How many different sources those have that were looked at.
        frequent_words: Different words that occur at least OFTEN times, in sources and targets together.
        is_spelt: Whether every text is a single word or formula, so that its characters are what is to be learnt.
        is_answer: Whether a target is right or wrong as a whole: a word, a number or a few symbols, and no sentence.
        has_symbol_targets: Whether targets are symbols, such as phonemes.
        other_targets: The share of pairs whose source has been there before, with another target.
        target_script: As Unicode names it, as in LATIN.
    """

    pairs: int
    sources: int
    frequent_words: int
    is_spelt: bool
    is_answer: bool
    has_symbol_targets: bool
    other_targets: float
    target_script: str


OFTEN = 2
"""
A word this frequent is to be one token. On Multi30k that gives 2,000 tokens for 1,000 pairs, 5,100 for 5,000, and for
29,000 the most that are given, 10,000; and the 400 of the quick start. With 1,000 pairs 880 tokens, one for each word
that occurs five times, have 12.1 BLEU after 1,300 steps, 1,800 have 13.7, and 3,000 have 14.2 (docs/ablations.md), of
which most are too rare for check.py.
"""
FEWEST_WORDS_OF_TEXT = 1.5  # in the mean text: where there are fewer, it is spelt
MOST_WORDS_OF_AN_ANSWER = 2.5  # in the mean target


def look(pairs: Iterable[Pair], symbols: tuple[bool, ...]) -> Facts:
    """Read all pairs. `symbols` says for each part of the source, and last for the target, whether it holds symbols."""
    counts: Counter[str] = Counter()
    words = [0] * len(symbols)  # in each column
    targets: dict[int, int] = {}  # the first of each source, by their hashes
    looked_at, again, script = 0, 0, ""
    remaining = iter(pairs)
    for pair in islice(remaining, LOOKED_AT):
        looked_at += 1
        for column, text in enumerate((*pair.source, pair.target)):
            if not symbols[column]:
                found = words_of(text)
                counts.update(found)
                words[column] += len(found) if is_without_spaces(text) else len(text.split())
        source, target = hash(pair.source), hash(pair.target)
        again += targets.setdefault(source, target) != target
        script = script or script_of(pair.target)
    if not looked_at:
        raise InvalidDataError("data.train: there are no pairs")
    means = [count / looked_at for count, is_symbol in zip(words, symbols, strict=True) if not is_symbol]
    return Facts(
        pairs=looked_at + sum(1 for _ in remaining),
        sources=len(targets),
        frequent_words=sum(count >= OFTEN for count in counts.values()),
        is_spelt=max(means, default=0) < FEWEST_WORDS_OF_TEXT,
        is_answer=symbols[-1] or words[-1] / looked_at < MOST_WORDS_OF_AN_ANSWER,
        has_symbol_targets=symbols[-1],
        other_targets=again / looked_at,
        target_script=script,
    )


def words_of(text: str) -> list[str]:
    """The words of a text; where none are written apart, its characters."""
    if is_without_spaces(text):
        return [character for character in text if not character.isspace()]
    return WORD.findall(text)


def is_without_spaces(text: str) -> bool:
    return script_of(text) in SCRIPTS_WITHOUT_SPACES


# The tokenizer ------------------------------------------------------------------------------------------------------

BYTES_AND_SPECIAL_TOKENS = 261  # are in every vocabulary of byte-pairs
MOST_TOKENS = ((1_000_000, 10_000), (math.inf, 32_000))  # up to so many pairs: IWSLT's 160,000 are usually given 10,000
BPE_DROPOUT = 0.05  # as in the Multi30k recipes; of no use beyond a million pairs (Provilkov et al., 2020)


def tokenizer(facts: Facts) -> dict[str, Any]:
    if facts.is_spelt:
        return {"kind": "character"}
    size = min(BYTES_AND_SPECIAL_TOKENS + facts.frequent_words, up_to(facts.pairs, MOST_TOKENS))
    values = {"kind": "bpe", "vocab_size": rounded(size)}
    return values | ({"dropout": BPE_DROPOUT} if facts.pairs <= 1_000_000 else {})


# The model ----------------------------------------------------------------------------------------------------------

PRESETS = ((150_000, "tiny"), (1_000_000, "small"), (math.inf, "base"))  # up to so many pairs
# CMUdict's 109,000 have 69.5 % of words right with a dropout of 0.2, 71.0 with 0.15, 71.7 with 0.1 (docs/ablations.md).
DROPOUTS = ((100_000, 0.3), (1_000_000, 0.15), (math.inf, 0.1))  # up to so many pairs: more data, less dropout
SPELT_D_FF = 4  # times d_model, at least: as the recipe for CMUdict and Wu, Cotterell and Hulden (2021) have it


def model(facts: Facts) -> dict[str, Any]:
    size = {key: value for key, value in shipped.preset(up_to(facts.pairs, PRESETS)).items() if key in SIZE}
    if facts.is_spelt:
        size["d_ff"] = max(size["d_ff"], SPELT_D_FF * size["d_model"])
    return size | {"dropout": up_to(facts.pairs, DROPOUTS), "norm_first": False, "label_smoothing": 0.1}


SIZE = ("d_model", "encoder_layers", "decoder_layers", "num_heads", "d_ff")


# The training -------------------------------------------------------------------------------------------------------

EXAMPLES_OF_SPELT = 400  # in a batch: fewer are much worse for inflection (Wu, Cotterell and Hulden, 2021)
BATCHES_AN_EPOCH = 50  # of text: the Multi30k recipes have 58
TOKENS_OF_TEXT = (1024, 8192)  # of a batch, at least and at most: the quick start's and Multi30k's
TOKENS_OF_BASE = 25_000  # of a step: the paper's (5.1)

# How many pairs a training sees, repetitions counted, and in how many epochs at least and at most. Text: Multi30k's 5
# million in 172 epochs, the paper's base model 90 million in 20. Answers: CMUdict's 9 million in 82; with 804 to 5,216
# words 1,500 steps of 400 words are as good as 3,000, and the quick start's task has all right but one of 1,000 after
# 50 epochs (docs/ablations.md).
PAIRS_SEEN = {"text": 6_000_000, "answer": 1_200_000}
FEWEST_EPOCHS = {"text": 20, "answer": 80}
MOST_EPOCHS = {"text": 200, "answer": 2000}

# The highest rate, in multiples of equation 3's for the width and a warm-up of 4,000 steps: our recipes have 1.4 (quick
# start, CMUdict) to 3.6 (Multi30k as published). With 7.1, layers normalised after the residual sum do not learn.
RATES = {"tiny": 2.0, "small": 2.0, "base": 1.0}
WARM_UP_OF_THE_PAPER = 4000
WARM_UP = 0.1  # of the steps, but no more than the paper's

VALIDATIONS = 10
CHECKPOINTS = 100  # of which the last tenth is averaged, while the rate goes to 0
AVERAGED = 10


def training(facts: Facts, lengths: np.ndarray) -> dict[str, Any]:
    """
    Args:
        lengths: The tokens of source and target of each pair.
    """
    of_a_step, an_epoch = tokens_of_a_step(facts, lengths), int(lengths.sum(axis=0).max())
    passes = math.ceil(of_a_step / TOKENS_OF_TEXT[1]) if up_to(facts.pairs, PRESETS) == "base" else 1
    steps = rounded(epochs(facts) * math.ceil(an_epoch / of_a_step))
    return {
        "max_tokens": max(of_a_step // passes, longest(lengths)),
        **({"gradient_accumulation_steps": passes} if passes > 1 else {}),
        "max_steps": steps,
        "learning_rate": learning_rate(facts),
        "lr_scheduler_type": "cosine",
        "warmup_steps": max(1, rounded(min(WARM_UP_OF_THE_PAPER, WARM_UP * steps))),
        "eval_steps": max(1, steps // VALIDATIONS),
        "save_steps": max(1, steps // CHECKPOINTS),
        "save_total_limit": AVERAGED + 2,
        "average_checkpoints": AVERAGED,
        **metrics(facts),
        "seed": 42,
    }


def tokens_of_a_step(facts: Facts, lengths: np.ndarray) -> int:
    if facts.is_spelt:
        return up(EXAMPLES_OF_SPELT * float(lengths.max(axis=1).mean()), 512)
    if up_to(facts.pairs, PRESETS) == "base":
        return TOKENS_OF_BASE
    low, high = TOKENS_OF_TEXT
    return min(high, max(low, up(lengths.sum(axis=0).max() / BATCHES_AN_EPOCH, 512)))


def epochs(facts: Facts) -> float:
    kind = "answer" if facts.is_answer else "text"
    return min(MOST_EPOCHS[kind], max(FEWEST_EPOCHS[kind], PAIRS_SEEN[kind] / facts.pairs))


def learning_rate(facts: Facts) -> float:
    preset = up_to(facts.pairs, PRESETS)
    peak = (shipped.preset(preset)["d_model"] * WARM_UP_OF_THE_PAPER) ** -0.5  # equation 3
    return float(f"{RATES[preset] * peak:.1e}")


def metrics(facts: Facts) -> dict[str, Any]:
    """The first is that by which the best checkpoint is chosen."""
    if not facts.is_answer:
        without_spaces = {"bleu_tokenize": "char"} if facts.target_script in SCRIPTS_WITHOUT_SPACES else {}
        return {"metrics": ["bleu", "chrf"], "metric_for_best_model": "bleu", **without_spaces}
    errors = "token_error_rate" if facts.has_symbol_targets else "character_error_rate"
    several = {"group_references": True} if facts.other_targets > SEVERAL_TARGETS else {}
    return {"metrics": ["exact_match", errors], "metric_for_best_model": "exact_match", **several}


SEVERAL_TARGETS = 0.01  # of the pairs, for sources to be scored against all of their targets: 6 % in CMUdict


# What is held out, and how long texts may be ------------------------------------------------------------------------

# Of the sources, at least and at most: enough to tell checkpoints apart, few enough to be translated often.
HELD_OUT = (0.05, 100, 2000)
MOST_HELD_OUT = 0.2
ROOM = 1.25  # texts that were not looked at may be so much longer than the longest of those for training
USUAL_LIMIT = 256  # tokens. Beyond it only what leaves out no more than a pair in 200
TOO_LONG = 0.005


def held_out(facts: Facts) -> int:
    """A number of sources; with a source, all of its targets are held out."""
    share, least, most = HELD_OUT
    wanted = min(most, max(least, share * facts.sources))
    return max(1, int(min(wanted, MOST_HELD_OUT * facts.sources)))


def limits(lengths: np.ndarray) -> dict[str, int]:
    names = ("max_source_length", "max_target_length")
    return {name: limit(lengths[:, side]) for side, name in enumerate(names)}


def limit(lengths: np.ndarray) -> int:
    enough = max(USUAL_LIMIT, float(np.quantile(lengths, 1 - TOO_LONG)))
    return up(min(ROOM * float(lengths.max()), enough), 8)


def longest(lengths: np.ndarray) -> int:
    return max(limits(lengths).values())


# The whole recipe ---------------------------------------------------------------------------------------------------


def draft(data: Mapping[str, Any], facts: Facts) -> Values:
    """What is known before texts are segmented into tokens."""
    return {
        "data": {"validation": held_out(facts)} | dict(data),
        "tokenizer": tokenizer(facts),
        "model": model(facts),
        "generation": {"num_beams": 5},
    }


def proposal(data: Mapping[str, Any], facts: Facts, lengths: np.ndarray) -> Values:
    values = draft(data, facts)
    return values | {"data": values["data"] | limits(lengths), "training": training(facts, lengths)}


def up_to(pairs: int, table: tuple[tuple[float, Any], ...]) -> Any:
    return next(value for most, value in table if pairs <= most)


def up(number: float, multiple: int) -> int:
    return math.ceil(number / multiple) * multiple


def rounded(number: float) -> int:
    """To two digits, so that nobody takes it for exact."""
    return int(float(f"{number:.1e}"))

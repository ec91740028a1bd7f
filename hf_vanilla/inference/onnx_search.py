"""
Greedy and beam search over the graphs of `hf-vanilla export --to onnx`, with the results of `generate()`.

It needs onnxruntime and NumPy. What it does not do is refused by name.

Letters of shapes: N rows (hypotheses of all sentences), V vocabulary size, C candidates for the next tokens.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..run_directory import MODEL_CONFIG
from .engine import EngineError, Found
from .search_settings import asks_for_nothing

ENCODER, DECODER = "encoder.onnx", "decoder.onnx"

IN_A_GROUP = 64  # logits: the largest of a row are in the groups with the largest maxima
USUAL_NEW_TOKENS = 20  # the limit of transformers, where neither the generation config nor the call has one

FOLLOWED = {
    *("num_beams", "num_return_sequences", "length_penalty", "length_penalty_type", "early_stopping"),
    *("max_length", "max_new_tokens", "max_length_beyond_source", "min_length", "min_new_tokens"),
    *("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "renormalize_logits", "forced_eos_token_id"),
    *("eos_token_id", "pad_token_id", "decoder_start_token_id"),
}
"""Keys of the generation config that the search does what they ask for."""


@dataclass(frozen=True)
class Search:
    """What is searched for, by the names of the generation config."""

    eos_token_id: tuple[int, ...]
    decoder_start_token_id: int
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    length_penalty_type: str | None = None
    early_stopping: bool | str = False
    max_length: int | None = None
    max_new_tokens: int | None = None
    max_length_beyond_source: int | None = None
    min_length: int = 0
    min_new_tokens: int | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    renormalize_logits: bool = False
    forced_eos_token_id: int | None = None

    @classmethod
    def of(cls, *settings: Mapping[str, Any]) -> Self:
        """
        From generation configs and options of a call, each of which goes before those in front of it. The call is the
        last, and None in it switches a key off, as in `generate()`.
        """
        *configs, call = settings
        given: dict[str, Any] = {}
        for each in configs:
            given |= {name: value for name, value in each.items() if value is not None}
        given = {name: value for name, value in {**given, **call}.items() if value is not None}
        refuse_others(given)
        words = given.get("bad_words_ids") or ()
        eos = given.get("eos_token_id")
        if eos is None:
            raise EngineError("eos_token_id is not set: a search over ONNX graphs needs it")
        given["eos_token_id"] = tuple(eos) if isinstance(eos, Sequence) else (eos,)
        forced = given.get("forced_eos_token_id")
        if isinstance(forced, Sequence):
            if len(forced) != 1:
                raise EngineError(f"forced_eos_token_id ({forced}) must be one token for the search over ONNX graphs")
            given["forced_eos_token_id"] = forced[0]
        for name in ("suppress_tokens", "begin_suppress_tokens"):
            given[name] = tuple(given.get(name, ()))
        # generate() lets <eos> alone there
        given["suppress_tokens"] += tuple(token for (token,) in words if token not in given["eos_token_id"])
        return cls(**{name: value for name, value in given.items() if name in cls.__dataclass_fields__})

    def __post_init__(self) -> None:
        if self.num_return_sequences > self.num_beams:
            raise EngineError(
                f"num_return_sequences ({self.num_return_sequences}) must not be greater than num_beams "
                f"({self.num_beams}): the search has no more hypotheses"
            )
        if self.length_penalty_type not in (None, "gnmt"):
            raise EngineError(f"length_penalty_type ({self.length_penalty_type!r}) must be 'gnmt' or None")

    @property
    def renormalizes(self) -> bool:
        """Whether scores count what is left after others are suppressed: greedy ones are those of the model itself."""
        return self.renormalize_logits and self.num_beams > 1

    @property
    def candidates(self) -> int:
        """How many to look at: enough to go on with, however many of them end. For greedy search one."""
        return 1 if self.num_beams == 1 else max(2, 1 + len(self.eos_token_id)) * self.num_beams

    def normalised(self, score: float, length: int) -> float:
        """A log-probability divided by the length penalty."""
        return score / ((5 + length) / 6 if self.length_penalty_type == "gnmt" else length) ** self.length_penalty

    def limits(self, sources: Sequence[int], begun: int, positions: int | None) -> tuple[list[int], int]:
        """
        How many new tokens the targets of sources of these lengths may have, and the most that a batch may.

        Args:
            begun: How many tokens they begin with, the start token included.
            positions: How many there are, if they are learned.
        """
        beyond = self.max_length_beyond_source
        if self.max_new_tokens is not None:
            longest = begun + self.max_new_tokens
        elif self.max_length is not None:
            longest = self.max_length
        else:
            longest = positions or (begun + USUAL_NEW_TOKENS if beyond is None else 1 + max(sources) + beyond)
            longest = min(longest, begun + USUAL_NEW_TOKENS) if beyond is None else longest
        of_each = [longest if beyond is None else min(longest, 1 + length + beyond) for length in sources]
        if positions:
            of_each = [min(limit, positions + 1) for limit in of_each]  # the last token is not read
        return [max(1, limit - begun) for limit in of_each], max(of_each) - begun

    def suppressed(self, length: int, begun: int) -> list[int]:
        """The tokens that must not come next, after `length` new ones."""
        tokens = [*self.suppress_tokens, *(self.begin_suppress_tokens if length == 0 else ())]
        least = self.min_length if self.min_new_tokens is None else self.min_new_tokens + begun
        return [*tokens, *(self.eos_token_id if begun + length < least else ())]


def refuse_others(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if not (name in FOLLOWED or asks_for_nothing(name, value)):
            raise EngineError(f"{name} ({value!r}) is not done by the search over ONNX graphs: leave it out")
    words = settings.get("bad_words_ids") or ()
    if any(len(word) != 1 for word in words):
        raise EngineError(f"bad_words_ids ({words}) must have one token each for the search over ONNX graphs")


Candidate = tuple[float, int, int]  # the log-probability with one more token, which hypothesis has it, the token


@dataclass
class Beam:
    """The search for one sentence: what is running, and the best of what has ended."""

    search: Search
    limit: int  # how many new tokens targets may have
    most: int  # the most that any sentence of the batch may have
    running: list[Found]
    parents: list[int] = field(default_factory=lambda: [0])  # which of the running ones before each has grown from
    ended: list[Found] = field(default_factory=list)
    is_open: bool = True

    def advance(self, candidates: Sequence[Candidate], length: int) -> None:
        """
        Args:
            candidates: The best come first.
            length: Of targets with these tokens, what they began with not counted.
        """
        search, width = self.search, self.search.num_beams
        going = []
        for rank, (score, parent, token) in enumerate(candidates):
            if token not in search.eos_token_id and length < self.limit:
                going.append((score, parent, token))
            elif rank < width:
                tokens = [*self.running[parent].token_ids, token]
                self.ended.append(Found(tokens, search.normalised(score, length)))
        self.ended = sorted(self.ended, key=lambda each: -each.score)[:width]
        going = going[:width]
        self.parents = [parent for _, parent, _ in going]
        self.running = [Found([*self.running[parent].token_ids, token], score) for score, parent, token in going]
        self.is_open = bool(going) and (len(self.ended) < width or self.may_improve(going[0][0], length))

    def may_improve(self, best: float, length: int) -> bool:
        """Whether a hypothesis with this log-probability may become better than the worst that has ended."""
        search = self.search
        if search.early_stopping is True:
            return False
        hopes_for_more = search.early_stopping == "never" and search.length_penalty > 0
        return search.normalised(best, self.most if hopes_for_more else length) > self.ended[-1].score


class Graphs:
    """
    The graphs in a folder.

    Args:
        threads: Of onnxruntime; its own choice if not given.
    """

    def __init__(self, folder: Path, threads: int | None = None):
        try:
            import onnxruntime
        except ModuleNotFoundError:
            raise EngineError(
                f"{folder} is an export for onnxruntime, which is missing: pip install 'hf_vanilla[export]'"
            ) from None
        options = onnxruntime.SessionOptions()
        if threads:
            options.intra_op_num_threads = options.inter_op_num_threads = threads
        cpu = ["CPUExecutionProvider"]
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(folder / name), options, providers=cpu) for name in (ENCODER, DECODER)
        )
        self.sizes: dict[str, Any] = json.loads((folder / MODEL_CONFIG).read_text(encoding="utf-8"))
        self.layers = [f"{i}.{kind}" for i in range(self.sizes["decoder_layers"]) for kind in ("key", "value")]

    def encode(self, sources: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
        """What the decoder reads of sources: its inputs by their names."""
        longest, pad = max(map(len, sources)), self.sizes["pad_token_id"]
        ids = np.array([[*row, *[pad] * (longest - len(row))] for row in sources], np.int64)
        mask = (np.arange(longest) < np.array([len(row) for row in sources])[:, None]).astype(np.int64)
        names = [f"source.{layer}" for layer in self.layers]
        states = self.encoder.run(names, {"input_ids": ids, "attention_mask": mask})
        return {"attention_mask": mask, **dict(zip(names, states, strict=True))}

    def decode(
        self, tokens: np.ndarray, source: dict[str, np.ndarray], past: list[np.ndarray] | None
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The logits after the last of these tokens, and what is the past of the next: (N, T) -> (N, V)."""
        logits, present = self.all_logits(tokens, source, past)
        return logits[:, -1], present

    def all_logits(
        self, tokens: np.ndarray, source: dict[str, np.ndarray], past: list[np.ndarray] | None
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """As `decode`, with the logits after each of the tokens: (N, T) -> (N, T, V)."""
        if past is None:
            heads, sizes = self.sizes["num_heads"], {"key": self.sizes["d_kv"], "value": self.sizes["d_v"]}
            kinds = [layer.rpartition(".")[2] for layer in self.layers]
            past = [np.zeros((len(tokens), heads, 0, sizes[kind]), np.float32) for kind in kinds]
        names = [f"past.{layer}" for layer in self.layers]
        wanted = ["logits", *(f"present.{layer}" for layer in self.layers)]
        inputs = {"input_ids": tokens, **source, **dict(zip(names, past, strict=True))}
        logits, *present = self.decoder.run(wanted, inputs)
        return logits, present


class Batch:
    """The sentences whose search goes on, and what the decoder knows of their hypotheses, which are its rows."""

    def __init__(self, graphs: Graphs, sources: Sequence[Sequence[int]], beams: list[Beam], begun: list[list[int]]):
        self.graphs = graphs
        self.beams = beams
        self.source = graphs.encode(sources)
        self.past: list[np.ndarray] | None = None
        self.tokens = np.array(begun, np.int64)  # that the decoder has not read yet

    def candidates(self, search: Search, suppressed: Sequence[int]) -> Iterator[list[Candidate]]:
        """For each sentence its most probable next tokens."""
        logits, self.past = self.graphs.decode(self.tokens, self.source, self.past)
        scores = np.array([found.score for beam in self.beams for found in beam.running])
        number = search.candidates
        tokens, log_probabilities = most_probable(logits, number, suppressed, search.renormalizes)
        totals = (scores[:, None] + log_probabilities).reshape(len(self.beams), -1)
        order = (-totals).argsort(1, kind="stable")[:, :number]
        totals = np.take_along_axis(totals, order, 1)
        chosen = np.take_along_axis(tokens.reshape(len(self.beams), -1), order, 1)
        parents = order // tokens.shape[1]
        for row in zip(totals.tolist(), parents.tolist(), chosen.tolist(), strict=True):
            yield list(zip(*row, strict=True))

    def forced(self, token: int, search: Search) -> Iterator[list[Candidate]]:
        """For each sentence this as the next token of all its hypotheses. With beams it costs no probability."""
        if search.num_beams > 1:
            for beam in self.beams:
                yield [(found.score, parent, token) for parent, found in enumerate(beam.running)]
            return
        logits, _ = self.graphs.decode(self.tokens, self.source, self.past)
        gained = logits[:, token] - log_total(logits)[:, 0]
        for beam, log_probability in zip(self.beams, gained.tolist(), strict=True):
            yield [(beam.running[0].score + log_probability, 0, token)]

    def go_on(self) -> None:
        """Bring what the decoder knows into the order of the hypotheses that go on. Finished sentences leave."""
        each = len(self.tokens) // len(self.beams)
        places = [place for place, beam in enumerate(self.beams) if beam.is_open]
        rows = [place * each + parent for place in places for parent in self.beams[place].parents]
        before, self.beams = len(self.beams), [self.beams[place] for place in places]
        if rows != list(range(len(self.tokens))) and self.past is not None:
            self.past = [states[rows] for states in self.past]
        if len(places) < before or len(rows) != len(self.tokens):  # all rows of a sentence have the same source
            self.source = {name: states[rows] for name, states in self.source.items()}
        self.tokens = np.array([[found.token_ids[-1]] for beam in self.beams for found in beam.running], np.int64)


def search_batch(
    graphs: Graphs, sources: Sequence[Sequence[int]], search: Search, beginnings: Sequence[Sequence[int]] | None = None
) -> list[list[Found]]:
    """
    The best targets of each source, best first.

    Args:
        sources: Token ids with <eos>.
        beginnings: What each target begins with; all of the same length. Neither the start token nor <eos> is in them.
    """
    begun = [[search.decoder_start_token_id, *(beginnings[i] if beginnings else ())] for i in range(len(sources))]
    if len(set(map(len, begun))) > 1:
        raise EngineError("beginnings of targets that are searched together must have the same length")
    refuse_too_few(search, graphs.sizes["vocab_size"])
    limits, most = search.limits(
        [len(ids) for ids in sources], len(begun[0]), graphs.sizes.get("max_position_embeddings")
    )
    forced = search.forced_eos_token_id
    if forced is not None and most < search.num_return_sequences > 1:
        number = search.num_return_sequences
        raise EngineError(f"num_return_sequences ({number}): where the only token is forced_eos_token_id, there is one")
    beams = [Beam(search, limit, most, [Found(row[1:], 0.0)]) for limit, row in zip(limits, begun, strict=True)]
    batch, length = Batch(graphs, sources, beams, begun), 0
    while batch.beams:
        suppressed = search.suppressed(length, len(begun[0]))
        length += 1
        if forced is not None and length == most:
            candidates = batch.forced(forced, search)
        else:
            candidates = batch.candidates(search, suppressed)
        for beam, of_beam in zip(batch.beams, candidates, strict=True):
            beam.advance(of_beam, length)
        batch.go_on()
    return [beam.ended[: search.num_return_sequences] for beam in beams]


def refuse_too_few(search: Search, vocab_size: int) -> None:
    """Beam search wants this many candidates at each step, also where there is one hypothesis."""
    left = vocab_size - len({*search.suppress_tokens, *search.begin_suppress_tokens, *search.eos_token_id})
    if left + len(search.eos_token_id) < search.candidates:
        raise EngineError(
            f"num_beams ({search.num_beams}) needs {search.candidates} tokens that may come next, and there are {left}"
        )


def most_probable(
    logits: np.ndarray, number: int, suppressed: Sequence[int], renormalizes: bool
) -> tuple[np.ndarray, np.ndarray]:
    """
    The tokens with the largest logits of each row, and their log-probabilities, best first: (N, V) -> (N, C).

    Args:
        renormalizes: Whether these share the probability of the suppressed ones.
    """
    allowed = logits
    if suppressed:
        allowed = logits.copy()
        allowed[:, list(suppressed)] = -np.inf
    tokens = largest(allowed, min(number, allowed.shape[1]))
    total = log_total(allowed if renormalizes else logits)
    return tokens, np.take_along_axis(allowed, tokens, 1) - total


def log_total(logits: np.ndarray) -> np.ndarray:
    """What to take from logits to have log-probabilities, in float64: (..., V) -> (..., 1)."""
    top = logits.max(-1, keepdims=True)
    totals = np.exp(logits - top).sum(-1, keepdims=True, dtype=np.float64)
    if not np.isfinite(totals).all():
        raise EngineError("the model computed something that is no number: its weights are damaged, or too large")
    return top + np.log(totals)


def largest(values: np.ndarray, number: int) -> np.ndarray:
    """Where the largest values of each row are, the largest first, and of equal ones the first: (N, V) -> (N, C)."""
    if number == 1:
        return values.argmax(1)[:, None]
    rest = -values.shape[1] % IN_A_GROUP
    filled = np.pad(values, ((0, 0), (0, rest)), constant_values=-np.inf) if rest else values
    maxima = filled.reshape(len(values), -1, IN_A_GROUP).max(2)
    groups = maxima.argpartition(-min(number, maxima.shape[1]), 1)[:, -number:]
    places = (groups[..., None] * IN_A_GROUP + np.arange(IN_A_GROUP)).reshape(len(values), -1)
    found = np.take_along_axis(filled, places, 1)
    best = (-found).argpartition(number - 1, 1)[:, :number]
    places = np.sort(np.take_along_axis(places, best, 1), 1)
    order = (-np.take_along_axis(filled, places, 1)).argsort(1, kind="stable")
    return np.take_along_axis(places, order, 1)

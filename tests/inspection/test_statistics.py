"""Statistics of heads are those that loops over single weights give; heads whose attention is known have their role."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from positional import SHARPNESS, WIDTH, planted
from transformers import PreTrainedTokenizerFast

from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inspection.reading import Kind, Maps, each_maps_of
from hf_vanilla.inspection.statistics import ROLES, STATISTICS, HeadStatistics, Traits, is_punctuation, roles_of

SOURCES = [[5, 9, 7, 6, 8, 2], [7, 5, 2], [6, 6, 9, 8, 5, 7, 9, 2], [9, 2]]
TARGETS = [[8, 7, 2], [5, 6, 7, 8, 9, 5, 2], [9, 9, 2], [6, 5, 8, 2]]
START = 0


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([", ape ! bee cat ..."], "word")


def name(head: int, statistics: HeadStatistics, kind: Kind = "encoder") -> list[str]:
    of_kind = statistics.of(kind)
    return [role.name for role in roles_of({key: float(values[0, head]) for key, values in of_kind.items()})]


# --- Planted heads --------------------------------------------------------------------------------------------------


def analytic(length: int, steps: int, is_causal: bool) -> list[list[float]]:
    """The softmax of c / sqrt(d) sum_m cos(w_m (i + k - j)), as PE(p) PE(q) = sum_m cos(w_m (p - q))."""
    weights = []
    for query in range(length):
        keys = range(query + 1 if is_causal else length)
        frequencies = [10_000 ** (-2 * pair / WIDTH) for pair in range(WIDTH // 2)]
        scores = [
            SHARPNESS / math.sqrt(WIDTH) * sum(math.cos(w * (query + steps - key)) for w in frequencies) for key in keys
        ]
        total = sum(map(math.exp, scores))
        weights.append([math.exp(score) / total for score in scores])
    return weights


@pytest.mark.parametrize(("steps", "share"), [(-1, "previous"), (0, "same"), (1, "next")])
def test_a_planted_positional_head_has_the_share_of_the_analytic_softmax(
    steps: int, share: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    statistics = HeadStatistics(Traits(tokenizer, START))
    for place, maps in each_maps_of(planted(steps), SOURCES, TARGETS):
        statistics.add(maps, SOURCES[place], TARGETS[place])
    for kind, texts in (("encoder", SOURCES), ("decoder", TARGETS)):
        if kind == "decoder" and steps > 0:
            assert np.isnan(statistics.of("decoder")["next"]).all()
            continue
        expected = [
            row[query + steps]
            for text in texts
            for query, row in enumerate(analytic(len(text), steps, kind == "decoder"))
            if 0 <= query + steps < len(row)
        ]
        found = statistics.of(kind)
        assert found[share][0, 0] == pytest.approx(sum(expected) / len(expected), abs=2e-5)
        assert found["position"][0, 0] == steps
        assert found["position_share"][0, 0] == 1
        assert "positional" in name(0, statistics, kind)
        assert f"{share} token" in name(0, statistics, kind)


def test_a_head_of_zero_weights_has_the_largest_entropy_and_is_called_uniform(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    statistics = HeadStatistics(Traits(tokenizer, START))
    for place, maps in each_maps_of(planted(), SOURCES, TARGETS):
        statistics.add(maps, SOURCES[place], TARGETS[place])
    for kind, texts in (("encoder", SOURCES), ("decoder", TARGETS)):
        found = statistics.of(kind)
        visible = [range(1, len(t) + 1) if kind == "decoder" else [len(t)] * len(t) for t in texts]
        logarithms = [math.log(number) for numbers in visible for number in numbers]
        assert found["entropy_share"][0, 1] == pytest.approx(1, abs=1e-6)
        assert found["entropy"][0, 1] == pytest.approx(sum(logarithms) / len(logarithms), abs=1e-6)
        assert name(1, statistics, kind) == ["uniform"]
        assert found["entropy_share"][0, 0] < 0.9


# --- Any heads ------------------------------------------------------------------------------------------------------


def random_maps(sizes: Sequence[tuple[int, int]], seed: int = 0) -> list[Maps]:
    """Two layers of three heads; of the decoder, as of the model, no query sees what comes after it."""
    random = np.random.default_rng(seed)

    def softmax(*shape: int, is_causal: bool = False) -> np.ndarray:
        weights = random.dirichlet(np.full(shape[-1], 0.5), (2, 3, shape[0]))
        weights = np.tril(weights + 1e-9) if is_causal else weights
        return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)

    return [
        Maps(softmax(source, source), softmax(target, target, is_causal=True), softmax(target, source))
        for source, target in sizes
    ]


class Fixed(Traits):
    """Traits of tokens without a tokenizer: 2 is the end, 9 is punctuation."""

    def __init__(self, counts: tuple[np.ndarray, np.ndarray] | None):
        self.eos, self.start, self.special, self.counts = 2, START, np.array([START, 1, 2]), counts

    def punctuation(self, ids: np.ndarray) -> np.ndarray:
        return ids == 9


def by_loops(maps: list[Maps], kind: Kind, counts: np.ndarray, layer: int, head: int) -> dict[str, float]:  # noqa: C901
    """All statistics of a head, from single weights."""
    lists: dict[str, list[float]] = {each: [] for each in STATISTICS}
    offsets: dict[int, list[bool]] = {offset: [] for offset in (-2, -1, 0, 1, 2)}
    for one, source, target in zip(maps, SOURCES, TARGETS, strict=True):
        keys = [START, *target[:-1]] if kind == "decoder" else source
        queries = source if kind == "encoder" else target
        text = [key for key in keys if key not in (0, 1, 2)]
        rarest = [key for key in text if counts[key] == min(counts[key] for key in text)]
        for query, token in enumerate(queries):
            seen = range(query + 1 if kind == "decoder" else len(keys))
            row = [float(one.of(kind)[layer, head, query, key]) for key in seen]
            peak = max(seen, key=lambda key: row[key])
            for each, offset in (("previous", -1), ("same", 0), ("next", 1)):
                if query + offset in seen:
                    lists[each].append(row[query + offset])
            for offset, hits in offsets.items():
                if query + offset in seen:
                    hits.append(peak == query + offset)
            lists["first"].append(row[0])
            for each, those in (("sentence_end", [2]), ("punctuation", [9]), ("rarest", rarest)):
                if any(keys[key] in those for key in seen):
                    lists[each].append(sum(row[key] for key in seen if keys[key] in those))
            if any(keys[key] in rarest for key in seen):
                lists["rarest_peak"].append(keys[peak] in rarest)
                lists["rarest_chance"].append(sum(keys[key] in rarest for key in seen) / len(seen))
            entropy = -sum(weight * math.log(weight) for weight in row if weight > 0)
            lists["entropy"].append(entropy)
            if len(seen) > 1:
                lists["entropy_share"].append(entropy / math.log(len(seen)))
            lists["distance"].append(sum(abs(query - key) * row[key] for key in seen))
            if token != 2:
                lists["confidence"].append(max(row[key] for key in seen if keys[key] != 2))
    found = {each: sum(values) / len(values) for each, values in lists.items() if values}
    found["position_share"], position = max((sum(hits) / len(hits), -o) for o, hits in offsets.items() if hits)
    return found | {"position": -position}


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_statistics_are_those_that_loops_give(kind: Kind) -> None:
    maps = random_maps([(len(source), len(target)) for source, target in zip(SOURCES, TARGETS, strict=True)])
    counts = np.array([0, 0, 90, 0, 0, 4, 30, 4, 50, 60]), np.array([0, 0, 90, 0, 0, 40, 3, 7, 5, 6])
    statistics = HeadStatistics(Fixed(counts))
    for one, source, target in zip(maps, SOURCES, TARGETS, strict=True):
        statistics.add(one, source, target)
    found = statistics.of(kind)
    assert list(found) == [*STATISTICS]
    for layer, head in np.ndindex(2, 3):
        expected = by_loops(maps, kind, counts[kind == "decoder"], layer, head)
        known = {each: float(values[layer, head]) for each, values in found.items() if not np.isnan(values).all()}
        assert known == pytest.approx(expected, abs=1e-6)


def test_a_start_token_that_is_the_end_token_is_no_end_of_the_sentence() -> None:
    """A decoder that starts with </s> has the statistics of one that starts with <s>."""
    maps = random_maps([(len(source), len(target)) for source, target in zip(SOURCES, TARGETS, strict=True)])
    found = []
    for start in (START, 2):
        traits = Fixed(None)
        traits.start = start
        statistics = HeadStatistics(traits)
        for one, source, target in zip(maps, SOURCES, TARGETS, strict=True):
            statistics.add(one, source, target)
        found.append(statistics.of("decoder"))
    assert np.isnan(found[1]["sentence_end"]).all()
    for name, values in found[0].items():
        assert np.array_equal(found[1][name], values, equal_nan=True), name


def test_what_cannot_be_counted_is_not_a_number_and_gives_no_role() -> None:
    statistics = HeadStatistics(Fixed(None))
    (maps,) = random_maps([(3, 2)])
    statistics.add(maps, [5, 6, 7], [8, 2])
    for missing in ("rarest", "rarest_peak", "punctuation", "sentence_end"):
        assert np.isnan(statistics.of("encoder")[missing]).all()
    assert roles_of({"rarest_peak": math.nan, "sentence_end": math.nan}) == []
    assert HeadStatistics(Fixed(None)).as_dict() == {}


def test_ids_over_65536_are_counted_like_others() -> None:
    high = 70_000
    ids = [high + 5, high + 6, 5, 2]
    counts = np.full(high + 10, 8)
    counts[high + 6] = 1
    for which, expected in (([5, 6, 5, 2], None), (ids, 1)):
        statistics = HeadStatistics(Fixed((counts, counts)))
        maps = np.zeros((1, 1, 4, 4), np.float32)
        maps[..., 1] = 1
        statistics.add(Maps(maps, maps[:0], maps[:0]), which, [5, 2])
        if expected is not None:
            assert statistics.of("encoder")["rarest"][0, 0] == expected
            assert statistics.of("encoder")["rarest_peak"][0, 0] == expected


# --- Tokens and roles -----------------------------------------------------------------------------------------------


def test_punctuation_is_what_has_nothing_else(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.convert_tokens_to_ids([",", "ape", "!", "...", "</s>", "<s>"])
    assert Traits(tokenizer, START).punctuation(np.array(ids)).tolist() == [True, False, True, True, False, False]
    assert is_punctuation("«。»")
    assert not is_punctuation("")
    assert not is_punctuation("a.")


def test_special_tokens_are_never_the_rarest(tokenizer: PreTrainedTokenizerFast) -> None:
    counts = np.full(len(tokenizer), 5)
    counts[[0, 1, 2]] = 0
    traits = Traits(tokenizer, START, (counts, counts - 1))
    ids = np.array([0, *tokenizer.convert_tokens_to_ids(["ape", "bee"]), 2])
    assert traits.rarest(ids, 0).tolist() == [False, True, True, False]
    assert traits.rarest(np.array([2]), 1).tolist() == [False]


def test_a_role_begins_at_its_threshold_and_says_where_that_comes_from() -> None:
    for role in ROLES:
        assert role.statistic in STATISTICS
        assert "20" in role.source or "our own" in role.source
        assert roles_of({role.statistic: role.at_least}) == [role]
        assert roles_of({role.statistic: role.at_least - 1e-9}) == []

"""Corpora with weights have their shares in each epoch, and no pair of theirs is forgotten."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla.data.batching import TokenBudgetBatches
from hf_vanilla.data.mixing import Mixture

corpora = st.lists(st.tuples(st.integers(1, 300), st.floats(0.05, 50)), min_size=2, max_size=4)


def rows(mixture: Mixture, epoch: int) -> np.ndarray:
    return mixture.rows(epoch, np.arange(len(mixture)))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(corpora, st.integers(0, 10))
def test_shares_are_the_weights_to_half_a_pair_and_no_pair_is_left_out(
    given: list[tuple[int, float]], epoch: int
) -> None:
    sizes, weights = zip(*given, strict=True)
    mixture = Mixture(sizes, weights, seed=3)
    counts = np.bincount(rows(mixture, epoch), minlength=sum(sizes))
    whole = max(size * sum(weights) / weight for size, weight in given)
    is_once = []
    for end, size, weight in zip(accumulate(sizes), sizes, weights, strict=True):
        of_corpus = counts[end - size : end]
        assert abs(of_corpus.sum() - weight / sum(weights) * whole) <= 0.5001
        assert of_corpus.min() >= 1
        assert of_corpus.max() - of_corpus.min() <= 1
        is_once.append(of_corpus.max() == 1)
    assert any(is_once)


def test_a_recipe_of_three_to_one_has_three_quarters_from_the_first_in_every_epoch() -> None:
    mixture = Mixture([100, 250], [3, 1], seed=1)
    assert [int((rows(mixture, epoch) < 100).sum()) for epoch in range(5)] == [750] * 5
    assert len(mixture) == 1000


def test_pairs_that_do_not_fit_into_one_epoch_are_in_the_next() -> None:
    """Of the second corpus 4 of 3 times 10 pairs: after five epochs each was seen 7 times."""
    mixture = Mixture([100, 10], [100, 14], seed=1)
    seen = [np.bincount(rows(mixture, epoch), minlength=110)[100:] for epoch in range(5)]
    assert [int(counts.sum()) for counts in seen] == [14] * 5
    assert (sum(seen) == 7).all()
    assert len({tuple(counts) for counts in seen}) > 2


def test_seed_and_epoch_alone_decide_what_is_repeated() -> None:
    sizes, weights = [100, 10], [100, 14]
    assert (rows(Mixture(sizes, weights, 1), 4) == rows(Mixture(sizes, weights, 1), 4)).all()
    assert (rows(Mixture(sizes, weights, 1), 4) != rows(Mixture(sizes, weights, 2), 4)).any()
    mixture, places = Mixture(sizes, weights, 1), np.array([113, 3, 101])
    together = mixture.rows(np.array([4, 0, 2]), places)
    assert together.tolist() == [rows(mixture, e)[p] for e, p in zip([4, 0, 2], places, strict=True)]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_shares_are_the_same_on_several_processes(processes: int) -> None:
    from accelerate.data_loader import BatchSamplerShard

    mixture = Mixture([40, 200], [3, 1], seed=1)
    lengths = np.random.default_rng(0).integers(3, 30, (240, 2))
    batches = TokenBudgetBatches(lambda epoch: lengths[rows(mixture, epoch)], 256, per_step=processes)
    for epoch in range(2):
        batches.set_epoch(epoch)
        shards = [BatchSamplerShard(batches, processes, rank, even_batches=True) for rank in range(processes)]
        places = [index for shard in shards for batch in shard for _, index in batch]
        assert sorted(places) == list(range(800))
        assert (mixture.rows(epoch, np.array(places)) < 40).sum() == 600

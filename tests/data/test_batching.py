"""Token-budget batches: every example once, within the budget, little padding, and nothing left to chance."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla.data.batching import TokenBudgetBatches


def lengths_like_sentences(number: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    source = random.gamma(4, 4, number).astype(int) + 3
    return np.stack([source, (source * random.uniform(0.9, 1.1, number)).astype(int) + 2], axis=1)


def indices(batches: TokenBudgetBatches) -> list[list[int]]:
    return [[index for _, index in batch] for batch in batches]


pairs_of_lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=3, max_size=150)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(pairs_of_lengths, st.integers(120, 400), st.integers(1, 3), st.integers(0, 5), st.booleans())
def test_every_example_is_in_one_batch_within_the_budget(
    lengths: list[tuple[int, int]], budget: int, processes: int, epoch: int, shuffle: bool
) -> None:
    batches = TokenBudgetBatches(np.array(lengths), budget, per_step=processes, seed=3, shuffle=shuffle)
    batches.set_epoch(epoch)
    found = indices(batches)
    assert sorted(chain.from_iterable(found)) == list(range(len(lengths)))
    assert len(found) == len(batches)
    assert len(found) % processes == 0
    assert all(len(batch) * max(max(lengths[index]) for index in batch) <= budget for batch in found)
    assert {key_epoch for batch in batches for key_epoch, _ in batch} == {epoch}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(pairs_of_lengths, st.integers(120, 400), st.integers(1, 3))
def test_every_epoch_has_as_many_batches(lengths: list[tuple[int, int]], budget: int, processes: int) -> None:
    batches = TokenBudgetBatches(np.array(lengths), budget, per_step=processes)
    for epoch in range(4):
        batches.set_epoch(epoch)
        assert sum(1 for _ in batches) == len(batches)


def test_seed_and_epoch_alone_decide_the_order() -> None:
    lengths = lengths_like_sentences(500)

    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = TokenBudgetBatches(lengths, 300, seed=seed)
        batches.set_epoch(epoch)
        return indices(batches)

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    assert {frozenset(batch) for batch in order(1, 2)} != {frozenset(batch) for batch in order(1, 3)}


def test_lengths_like_those_of_sentences_need_little_padding() -> None:
    batches = TokenBudgetBatches(lengths_like_sentences(20_000), 4096)
    assert batches.padding < 0.03
    padded = sum(len(b) * batches.lengths[b].max(axis=0).sum() for b in indices(batches))
    assert 1 - batches.lengths.sum() / padded == pytest.approx(batches.padding, abs=1e-3)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(pairs_of_lengths, st.integers(160, 400), st.integers(1, 3))
def test_where_lengths_change_every_epoch_still_has_every_example_once_in_as_many_batches(
    lengths: list[tuple[int, int]], budget: int, processes: int
) -> None:
    def lengths_in(epoch: int) -> np.ndarray:
        return np.array(lengths) + np.random.default_rng(epoch).integers(0, 40, (len(lengths), 2))

    try:
        batches = TokenBudgetBatches(lengths_in, budget, per_step=processes)
    except ValueError as error:
        assert "are too few" in str(error)  # noqa: PT017 -- as many batches as examples leave none to spare
        return
    for epoch in range(4):
        batches.set_epoch(epoch)
        found = indices(batches)
        assert sorted(chain.from_iterable(found)) == list(range(len(lengths)))
        assert len(found) == len(batches)
        assert len(found) % processes == 0


def test_batches_follow_the_lengths_of_their_epoch() -> None:
    """Lengths that dropout changes: cut by those of another epoch, a third of the tokens would be padding."""
    base = lengths_like_sentences(20_000)

    def lengths_in(epoch: int) -> np.ndarray:
        return base + np.random.default_rng(epoch).binomial(base, 0.3)

    batches = TokenBudgetBatches(lengths_in, 4096)
    assert batches.padding < 0.035
    for epoch in range(3):
        batches.set_epoch(epoch)
        lengths = lengths_in(epoch)
        sizes = [(len(batch), lengths[batch]) for batch in indices(batches)]
        assert max(size * longest.max() for size, longest in sizes) <= 4096
        padded = sum(size * longest.max(axis=0).sum() for size, longest in sizes)
        assert 1 - lengths.sum() / padded < 0.035


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_accelerate_gives_each_process_its_own_share(processes: int) -> None:
    from accelerate.data_loader import BatchSamplerShard

    batches = TokenBudgetBatches(lengths_like_sentences(700), 256, per_step=processes)
    shares = [list(BatchSamplerShard(batches, processes, rank, even_batches=True)) for rank in range(processes)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(index for share in shares for batch in share for _, index in batch) == list(range(700))
    for together in zip(*shares, strict=True):  # one step: batches of much the same cost
        sizes = [len(batch) * batches.lengths[[index for _, index in batch]].max() for batch in together]
        assert max(sizes) <= 256


def test_what_cannot_be_batched_is_refused() -> None:
    with pytest.raises(ValueError, match=r"example 1 has 9 tokens, more than max_tokens \(8\)"):
        TokenBudgetBatches(np.array([[3, 4], [9, 2]]), 8)
    with pytest.raises(ValueError, match="2 examples in 1 batches are too few for 3 batches in each step"):
        TokenBudgetBatches(np.array([[3, 4], [4, 2]]), 8, per_step=3)
    with pytest.raises(ValueError, match="4 examples in 4 batches are too few for 3 batches in each step"):
        TokenBudgetBatches(np.array([[8, 8]] * 4), 8, per_step=3)

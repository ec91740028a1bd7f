"""
A small statistical aligner: which words translate which, and how far from the diagonal, learned from pairs of texts.

IBM model 1 (Brown et al. 1993) with probabilities of positions that are learned as well. It knows nothing of any model,
so it can judge what a model's attention says. On Multi30k its links in both directions have an error rate of 13 %
against those of eflomal, where attention has 34 % at best.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from .alignments import Link

Sentence = Sequence[str]

ITERATIONS = 5
NOTHING = 0.08  # the probability that a target word comes from no source word
DISTANCES = 21  # kinds of distance from the diagonal: from the first word to the last, and from the last to the first
SMOOTHING = 1e-4  # added to all counts of word pairs


def links_in_both_directions(
    pairs: Sequence[tuple[Sentence, Sentence]], number: int
) -> tuple[list[set[Link]], list[set[Link]]]:
    """For the first `number` pairs the links that both directions find, and those that one of them finds."""
    forward = best_links(pairs, number)
    swapped = best_links([(target, source) for source, target in pairs], number)
    backward = [{(source, target) for target, source in links} for links in swapped]
    both = list(zip(forward, backward, strict=True))
    return [one & other for one, other in both], [one | other for one, other in both]


def best_links(pairs: Sequence[tuple[Sentence, Sentence]], number: int) -> list[set[Link]]:
    """For each target word its most probable source word, if that is more probable than none."""
    links = []
    for probabilities in link_probabilities(pairs)[:number]:
        best = probabilities.argmax(1)
        links.append({(int(best[target]) - 1, int(target)) for target in best.nonzero()[0]})
    return links


def link_probabilities(pairs: Sequence[tuple[Sentence, Sentence]]) -> list[np.ndarray]:
    """For each pair (target words, 1 + source words): that a target word comes from none, or from each source word."""
    # All cells of all pairs stand in a row, so that one step of EM is a few calls of NumPy.
    source_words, target_words = _numbered(source for source, _ in pairs), _numbered(target for _, target in pairs)
    sizes = [(len(target), 1 + len(source)) for source, target in pairs]
    sources = np.concatenate([np.tile([0, *(1 + source_words[w] for w in s)], len(t)) for s, t in pairs])
    targets = np.concatenate([np.repeat([target_words[w] for w in t], 1 + len(s)) for s, t in pairs])
    distances = np.concatenate([_distances(*size).ravel() for size in sizes])
    widths = np.concatenate([np.full(rows, columns) for rows, columns in sizes])
    starts = widths.cumsum() - widths

    def normalised(cells: np.ndarray) -> np.ndarray:
        return cells / np.repeat(np.add.reduceat(cells, starts), widths)

    known, kinds = np.unique(sources.astype(np.int64) * len(target_words) + targets, return_inverse=True)
    source_of_kind = known // len(target_words)
    translation = np.full(len(known), 1 / len(target_words))
    position = np.append(np.full(DISTANCES, 1 / DISTANCES), 0)
    for _ in range(ITERATIONS):
        expected = _by_position(normalised(position[distances]), starts)
        links = normalised(expected * translation[kinds])
        counts = np.bincount(kinds, links) + SMOOTHING
        translation = counts / np.bincount(source_of_kind, counts)[source_of_kind]
        found, offered = (np.bincount(distances, cells, DISTANCES + 1)[:-1] for cells in (links, expected))
        position[:-1] *= found / np.maximum(offered, SMOOTHING)
        position /= position.sum()
    links = normalised(_by_position(normalised(position[distances]), starts) * translation[kinds])
    cuts = np.cumsum([rows * columns for rows, columns in sizes])[:-1]
    return [cells.reshape(size) for cells, size in zip(np.split(links, cuts), sizes, strict=True)]


def _by_position(positions: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The probability of each cell before the words are seen. The first cell of a target word is that of no source."""
    cells = positions * (1 - NOTHING)
    cells[starts] = NOTHING
    return cells


def _numbered(sentences: Iterable[Sentence]) -> dict[str, int]:
    return {word: number for number, word in enumerate(dict.fromkeys(word for words in sentences for word in words))}


def _distances(rows: int, columns: int) -> np.ndarray:
    """The kind of distance of each cell. The last kind, of probability 0, is that of no source word."""
    difference = (np.arange(columns - 1) + 0.5) / (columns - 1) - ((np.arange(rows) + 0.5) / rows)[:, None]
    kinds = ((difference + 1) / 2 * DISTANCES).astype(np.int64)
    return np.pad(kinds, ((0, 0), (1, 0)), constant_values=DISTANCES)

"""Where a translation looked: the picture of the page, as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..inference.translator import Hypothesis, Source, Translator
from ..inspection.looking import first_map
from ..inspection.reading import each_maps_of
from ..inspection.tokens import source_tokens, target_tokens
from ..translation_page import MOST_DRAWN

DECIMALS = 3


@dataclass(frozen=True)
class Picture:
    """
    Args:
        sources: What its columns are: the tokens of the source.
        targets: What its rows are.
        weights: (rows, columns), the attention of the map that was chosen as the best alignment. None are drawn of a
            side with more than MOST_DRAWN tokens: then there is no row.
    """

    sources: list[str]
    targets: list[str]
    weights: list[list[float]]

    @property
    def is_small(self) -> bool:
        return max(len(self.sources), len(self.targets)) <= MOST_DRAWN


def pictures_of(
    translator: Translator, sources: Sequence[Source], prefix: str, found: Sequence[Hypothesis]
) -> list[Picture | None]:
    """Of each translation of the source beside it; None where the translation has no tokens."""
    model, tokenizer = translator.model, translator.tokenizer
    read = translator.encoder.sources(sources, prefix)
    pictures = {}
    for place, each in enumerate(found):
        if each.token_ids:
            columns = source_tokens(tokenizer, sources[place], read[place])
            rows = target_tokens(tokenizer, each.text, each.token_ids)
            pictures[place] = Picture(list(map(str, columns)), list(map(str, rows)), [])
    drawn = [place for place, picture in pictures.items() if picture.is_small]
    attention, _ = first_map(model)
    # one row more, as a map is read by the rows that predict a token, or by those that read it
    written = [[*found[place].token_ids, tokenizer.eos_token_id] for place in drawn]
    asked = [read[place] for place in drawn]
    for number, maps in each_maps_of(model, asked, written, ["cross"], translator.max_tokens):
        weights = attention.of(maps.cross[attention.layer]).round(DECIMALS).tolist()
        pictures[drawn[number]] = replace(pictures[drawn[number]], weights=weights)
    return [pictures.get(place) for place in range(len(found))]

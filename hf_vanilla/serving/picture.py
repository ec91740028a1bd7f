"""Where a translation looked: the picture of the page, as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..inference.translator import Hypothesis, Source, Translator
from ..inspection.looking import first_map
from ..inspection.reading import maps_of
from ..inspection.tokens import source_tokens, target_tokens

DECIMALS = 3


@dataclass(frozen=True)
class Picture:
    """
    Args:
        sources: What its columns are: the tokens of the source.
        targets: What its rows are.
        weights: (rows, columns), the attention of the map that was chosen as the best alignment.
    """

    sources: list[str]
    targets: list[str]
    weights: list[list[float]]


def pictures_of(
    translator: Translator, sources: Sequence[Source], prefix: str, found: Sequence[Hypothesis]
) -> list[Picture | None]:
    """Of each translation of the source beside it; None where there is nothing to see."""
    model, tokenizer = translator.model, translator.tokenizer
    read = translator.encoder.sources(sources, prefix)
    drawn = [place for place, each in enumerate(found) if each.token_ids]
    attention, _ = first_map(model)
    # one row more, as a map is read by the rows that predict a token, or by those that read it
    written = [[*found[place].token_ids, tokenizer.eos_token_id] for place in drawn]
    maps = maps_of(model, [read[place] for place in drawn], written, ["cross"], translator.max_tokens)
    pictures: list[Picture | None] = [None] * len(found)
    for place, each in zip(drawn, maps, strict=True):
        ids = found[place].token_ids
        pictures[place] = Picture(
            list(map(str, source_tokens(tokenizer, sources[place], read[place]))),
            list(map(str, target_tokens(tokenizer, found[place].text, ids))),
            attention.of(each.cross[attention.layer]).round(DECIMALS).tolist(),
        )
    return pictures

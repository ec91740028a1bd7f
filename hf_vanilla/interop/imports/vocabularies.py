"""Fast tokenizers that give the ids of a toolkit's vocabulary: words, characters, and the merges of subword-nmt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..errors import InteropError
from .sentencepiece_model import SPACE

CONTINUES = "@@"  # at the end of a token of subword-nmt that does not end its word
WORD_END = "</w>"  # at the end of a merge of subword-nmt that ends its word


@dataclass(frozen=True)
class Vocabulary:
    """
    The tokens of source and target together.

    Args:
        tokens: Those of the target by their ids there, then those that only the source has.
        source: The id here of each id of the source.
        target: The same of the target.
    """

    tokens: list[str]
    source: list[int]
    target: list[int]

    @classmethod
    def of(cls, source: Sequence[str], target: Sequence[str]) -> "Vocabulary":
        tokens = list(dict.fromkeys([*target, *source]))
        if len(set(target)) < len(target) or len(set(source)) < len(source):
            raise InteropError("a vocabulary has a token twice, so that its ids are not those of the model")
        place = {token: number for number, token in enumerate(tokens)}
        return cls(tokens, [place[token] for token in source], list(range(len(target))))


def words(tokens: Sequence[str], unknown: str) -> Tokenizer:
    """Tokens between white space, as they are."""
    tokenizer = Tokenizer(models.WordLevel(_numbered(tokens), unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def characters(tokens: Sequence[str], unknown: str) -> Tokenizer:
    """Every character is a token, and a space is the token that SentencePiece writes for it."""
    tokenizer = Tokenizer(models.BPE(_numbered(tokens), [], unk_token=unknown))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    return tokenizer


def merged(tokens: Sequence[str], unknown: str, specials: Sequence[str], codes: str) -> tuple[Tokenizer, int]:
    """
    A tokenizer that applies the merges of subword-nmt, and how many tokens it has.

    Tokens that only lead to others get ids behind.

    Args:
        codes: What `subword-nmt learn-bpe` wrote.
    """
    lines = codes.split("\n")  # others that end lines elsewhere may be part of a merge
    if lines[0].strip() != "#version: 0.2":
        raise InteropError(
            "the merges of subword-nmt must be of version 0.2 (say so in the first line): use --segmented"
        )
    merges = [_merge(line) for line in (line.strip("\r ") for line in lines[1:]) if line]
    names = [token if token in specials else _as_merged(token) for token in tokens]
    known = set(names)
    extra = dict.fromkeys(part for first, second in merges for part in (first, second, first + second))
    names += [part for part in extra if part not in known]
    model = models.BPE(_numbered(names), merges, unk_token=unknown, end_of_word_suffix=WORD_END)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(WORD_END)
    return tokenizer, len(names)


def _merge(line: str) -> tuple[str, str]:
    parts = line.split(" ")
    if len(parts) != 2:
        raise InteropError(f"{line!r:.60} is no merge of subword-nmt, which has two parts: use --segmented")
    return parts[0], parts[1]


def _as_merged(token: str) -> str:
    return token.removesuffix(CONTINUES) if token.endswith(CONTINUES) else token + WORD_END


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def lowercased(tokenizer: Tokenizer) -> Tokenizer:
    before = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
    return tokenizer


def assembled(backend: Tokenizer, specials: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """Every text ends in <eos>, and special tokens that are written out in a text have no meaning of their own."""
    eos = specials["eos_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", special_tokens=[(eos, backend.token_to_id(eos))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, split_special_tokens=True, **specials)

"""Trains a fast tokenizer: byte-pair encoding for both sides together, characters, words, or words and characters."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TokenizerKind = Literal["bpe", "character", "word", "hybrid"]

# The ids are those that VanillaConfig defaults to.
SPECIAL_TOKENS = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "<sep>",
}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def train_tokenizer(
    texts: Iterable[str], kind: TokenizerKind = "bpe", vocab_size: int = 8000, lowercase: bool = False
) -> PreTrainedTokenizerFast:
    """
    Train a tokenizer on `texts`, sources and targets together.

    - "bpe": byte-pair encoding over bytes.
    - "character": every character of the texts is a token; others are written as bytes.
    - "word": the `vocab_size` most frequent words, separated by white space; others are unknown.
    - "hybrid": the most frequent words are tokens, others are written as characters. So in grapheme-to-phoneme data a
      phoneme is one token, and a word to be pronounced is its letters.

    With all but "word" no text is unknown, and decoding gives back the text, in NFC and lower-cased if asked for. A
    special token that is written out in a text is taken for ordinary text.
    """
    train = {"bpe": _byte_pairs, "character": _characters, "word": _words, "hybrid": _words_and_characters}[kind]
    tokenizer = train(texts, vocab_size, lowercase)
    eos = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, split_special_tokens=True, **SPECIAL_TOKENS)


def _normalizer(lowercase: bool, *more: normalizers.Normalizer) -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else []), *more])


def _byte_pairs(texts: Iterable[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # A space in front of every text, so that a word has the same tokens wherever it stands.
    tokenizer.normalizer = _normalizer(lowercase, normalizers.Prepend(" "))
    # And each digit by itself, so that numbers are spelt alike.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _characters(texts: Iterable[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    normalizer = _normalizer(lowercase)
    alphabet = {character for text in texts for character in normalizer.normalize_str(text)}
    tokenizer = Tokenizer(_spelling(sorted(alphabet), words=[]))
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _words_and_characters(texts: Iterable[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    normalizer = _normalizer(lowercase, normalizers.Prepend(" "))
    words_with_space = pre_tokenizers.Split(" ", "merged_with_next")
    counts = Counter(
        word for text in texts for word, _ in words_with_space.pre_tokenize_str(normalizer.normalize_str(text))
    )
    alphabet = sorted({character for word in counts for character in word})
    frequent = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
    room = max(0, vocab_size - len(SPECIAL_TOKENS) - len(BYTES) - len(alphabet))
    tokenizer = Tokenizer(_spelling(alphabet, frequent[:room]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = words_with_space
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def _spelling(alphabet: Sequence[str], words: Sequence[str]) -> models.BPE:
    """
    A model that knows each of `words`, and writes others as characters or, if these are unknown, as bytes.

    The words begin with a space, so none of them can be taken for a special token.
    """
    vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS.values(), *BYTES, *alphabet, *words])}
    return models.BPE(
        vocab=vocab,
        merges=[],
        ignore_merges=bool(words),  # a whole word is looked up first
        byte_fallback=True,
        unk_token=SPECIAL_TOKENS["unk_token"],
    )


def _words(texts: Iterable[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKENS["unk_token"]))
    # A word that looks like a special token would become one: a space makes two words of it.
    special = [normalizers.Replace(token, f"{token[0]} {token[1:]}") for token in SPECIAL_TOKENS.values()]
    tokenizer.normalizer = _normalizer(lowercase, *special)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS.values()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Encoder:
    """Text to ids: parts of a source are joined by the separator, and every text ends in <eos>."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer

    def sources(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        parts = self._ids([part for text in texts for part in text])
        remaining = iter(parts)
        return [self.joined([next(remaining) for _ in text]) for text in texts]

    def targets(self, texts: Sequence[str]) -> list[list[int]]:
        return [[*ids, self.tokenizer.eos_token_id] for ids in self._ids(texts)]

    def joined(self, parts: Sequence[Sequence[int]]) -> list[int]:
        ids = list(parts[0])
        for part in parts[1:]:
            ids += [self.tokenizer.sep_token_id, *part]
        return [*ids, self.tokenizer.eos_token_id]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:  # transformers' tokenizers fail on an empty list
            return []
        return self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)["input_ids"]

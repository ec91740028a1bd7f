"""Forced beginnings: the last word does not go on, and whatever may follow may."""

import re
from collections.abc import Callable

import pytest
import torch

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.data.tokenizer import Columns, Encoder, train_tokenizer
from hf_vanilla.inference.beginnings import Beginnings, End, ends_in_word
from hf_vanilla.inference.translator import Translator
from hf_vanilla.models import guard_vanilla

TEXTS = [
    "Ein Mann, der 12 Hunde hat: Mannschaft!",
    "der Manns Mannschaften sind schön und groß",
    "schaft schaften -- Mann-o-Mann (das) 122 Straßen. „ja“",
    "你好世界 手机 iPhone手机 é e\u0301",
]
KINDS = ("bpe", "character", "word")
Make = Callable[[str], Beginnings]


@pytest.fixture(scope="module")
def make() -> Make:
    made = {kind: Beginnings(Encoder(train_tokenizer(TEXTS * 9, kind, 380))) for kind in KINDS}
    return made.__getitem__


def behind(beginnings: Beginnings, start: str, token: int) -> str:
    """What the text is after one more token."""
    ids = [*beginnings.of([start])[0].token_ids, token]
    return beginnings.encoder.tokenizer.decode(ids)


@pytest.mark.parametrize("start", ["Mann", "Ein Mann", "12", "schön", "der 1", "Mann-o"])
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_word_exactly_those_tokens_are_left_that_do_not_lengthen_it(make: Make, kind: str, start: str) -> None:
    """By a regular expression on the decoded texts: no character of the word class follows."""
    beginnings = make(kind)
    (beginning,) = beginnings.of([start])
    assert beginning.end is End.WORD
    suppressed = set(beginnings.suppressed(beginning.end))
    tokenizer = beginnings.encoder.tokenizer
    begun = tokenizer.decode(beginning.token_ids)
    for token in set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids):
        text = behind(beginnings, start, token)
        assert text.startswith(begun)
        added = text[len(begun) :]
        is_cjk = re.match("[\u4e00-\u9fff]", added) is not None
        goes_on = re.match(r"[^\W_]|\u0301|\ufffd", added) is not None and not is_cjk
        assert (token in suppressed) == goes_on, added
    special = set(tokenizer.all_special_ids) - {tokenizer.eos_token_id}  # nobody would see them in the text
    assert suppressed & set(tokenizer.all_special_ids) == (set() if kind == "word" else special)
    assert bool(suppressed) == (kind != "word")  # whose tokens are whole words


@pytest.mark.parametrize("kind", KINDS)
def test_after_punctuation_chinese_and_nothing_anything_may_follow(make: Make, kind: str) -> None:
    for text in ("", "Mann,", "(", "iPhone手机", "สวัสดี", "カー", " ", "   "):
        (beginning,) = make(kind).of([text])
        assert beginning.end is End.OPEN, text
        assert make(kind).suppressed(End.OPEN) == []
        assert bool(beginning.token_ids) == bool(text.strip())


def test_a_space_at_the_end_is_forced_or_must_follow(make: Make) -> None:
    """Words of BPE bring their space with them: it is forced by what may follow, so that there are not two."""
    bpe, character, word = map(make, KINDS)
    assert bpe.of(["Ein Mann "])[0].token_ids == bpe.of(["Ein Mann"])[0].token_ids
    (beginning,) = bpe.of(["Ein Mann "])
    assert beginning.end is End.SPACE
    vocabulary = set(bpe.encoder.tokenizer.get_vocab().values()) - set(bpe.encoder.tokenizer.all_special_ids)
    suppressed = set(bpe.suppressed(End.SPACE))
    for token in vocabulary:
        assert (token in suppressed) == (not behind(bpe, "Mann", token).startswith("Mann "))
    assert 5 < len(vocabulary - suppressed) < len(vocabulary) / 2
    (beginning,) = character.of(["Mann "])
    assert (beginning.end, character.encoder.tokenizer.decode(beginning.token_ids)) == (End.OPEN, "Mann ")
    assert word.of(["Ein "])[0].token_ids == word.of(["Ein"])[0].token_ids
    assert word.suppressed(End.SPACE) == []


def test_symbols_are_whole_and_what_is_spelt_does_not_lengthen_them() -> None:
    tokenizer = train_tokenizer(["b", "AH"], "character", columns=Columns((None,), " "), symbols=[" AH", " B"])
    beginnings = Beginnings(Encoder(tokenizer))
    (beginning,) = beginnings.of(["AH B"])
    assert len(beginning.token_ids) == 2
    suppressed = set(tokenizer.convert_ids_to_tokens(beginnings.suppressed(beginning.end)))
    assert {"b", "A", "H"} <= suppressed
    assert not {" AH", " B"} & suppressed


@pytest.mark.parametrize(
    ("text", "is_word"),
    [
        *(
            ("Mann", True),
            ("3", True),
            ("e\u0301", True),
            ("हिन्दी", True),
            ("한국", True),
            ("手", False),
            ("ไทย", False),
        ),
        *(("", False), (".", False), ("a_", False), ("ー", False), ("ッ", False), ("ﾊ", False), ("々", False)),
    ],
)
def test_which_characters_are_of_words_that_spaces_separate(text: str, is_word: bool) -> None:
    assert ends_in_word(text) == is_word


@pytest.fixture(scope="module")
def eager(make: Make) -> Callable[[Callable[..., Model]], Translator]:
    def made(make_model: Callable[..., Model]) -> Translator:
        """A model that goes on with "schaft" whenever it may."""
        tokenizer = make("bpe").encoder.tokenizer
        with torch.no_grad():
            model = make_model(vocab_size=len(tokenizer), tie_word_embeddings=False)
            output = model.lm_head.weight
            output[: len(tokenizer)] *= 0.2
            likes = tokenizer("schaft Mann", add_special_tokens=False)["input_ids"]
            for token in range(len(tokenizer)):
                if tokenizer.decode([likes[0], token])[-1:].isalpha() and not tokenizer.convert_ids_to_tokens(
                    token
                ).startswith("Ġ"):
                    output[token] *= 12
        model.generation_config.update(max_length=12, num_beams=3)
        return Translator(model, tokenizer)

    return made


@pytest.mark.parametrize("options", [{}, {"num_beams": 1}, {"num_return_sequences": 3}, {"do_sample": True, "seed": 3}])
def test_no_translation_lengthens_the_last_word(
    eager: Callable[..., Translator],
    make_model: Callable[..., Model],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
) -> None:
    translator = eager(make_model)
    taken = []
    for name in ("beam_search", "greedy_search"):
        usual = getattr(guard_vanilla, name)
        monkeypatch.setattr(guard_vanilla, name, lambda *a, usual=usual: taken.append(1) or usual(*a))
    texts = ["Ein Hund", "der Mann", "Straßen", "groß", "und"] * 3
    starts = ["Mann", "Ein Mann", "Mann ", "Mann,", ""] * 3
    found = translator.hypotheses(texts, target_prefixes=starts, **options)
    for start, each in zip(starts, found, strict=True):
        for hypothesis in each:
            follows = hypothesis.text[len(start.rstrip(" ")) :]
            assert hypothesis.text.startswith(start.rstrip(" "))
            if start in ("Mann", "Ein Mann"):
                assert not re.match("[^\\W_\u4e00-\u9fff]|\ufffd", follows), hypothesis.text
            if start.endswith(" "):
                assert re.match(r" |$", follows)
    assert bool(taken) == ("do_sample" not in options)
    plain = translator.model.generate(
        torch.tensor(translator.encode_batch(["Ein Hund"])),
        decoder_input_ids=torch.tensor([[0, *translator.beginnings.of(["Mann"])[0].token_ids]]),
    )
    text = translator.tokenizer.decode(plain[0], skip_special_tokens=True)
    assert re.match(r"Mann(\w|\ufffd)", text), text  # else the test could not fail

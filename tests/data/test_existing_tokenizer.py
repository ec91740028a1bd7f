"""A tokenizer that somebody has keeps its ids, gets the special tokens that training needs, and runs no code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_vanilla.data import existing_tokenizer
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.existing_tokenizer import load_tokenizer, refuse_dropout, with_tokens
from hf_vanilla.data.tokenizer import Columns, Encoder, train_tokenizer

TEXTS = ["a small dog runs over the green field", "two men are running", "Ein kleiner Hund läuft 42 mal."] * 3


def like_gpt2() -> tuple[Tokenizer, dict[str, Any]]:
    """Byte-level; one special token, which is bos, eos and unk at the same time; no padding."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer, dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|end|>")


def like_t5() -> tuple[Tokenizer, dict[str, Any]]:
    """Unigram; the padding has the id 0; no bos and no separator."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>", show_progress=False),  # noqa: S106
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    named = {"pad_token": "<pad>", "eos_token": {"content": "</s>", "lstrip": False}, "unk_token": "<unk>"}
    return tokenizer, named | {"extra_ids": 0, "model_max_length": 8}


def like_bert() -> tuple[Tokenizer, dict[str, Any]]:
    """WordPiece in lower case, which puts [CLS] and [SEP] around a text, truncates and pads on the left."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(direction="left", length=9)
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return tokenizer, named | {"padding_side": "left", "model_input_names": ["input_ids", "token_type_ids"]}


def ours() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = train_tokenizer(TEXTS, "bpe", 290)
    return tokenizer.backend_tokenizer, {}


Kind = Callable[[], tuple[Tokenizer, dict[str, Any]]]
KINDS: list[Kind] = [like_gpt2, like_t5, like_bert, ours]


def saved(folder: Path, kind: Kind, **more: Any) -> Path:
    tokenizer, settings = kind()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | more))
    return folder


def reloaded(tokenizer: PreTrainedTokenizerFast, folder: Path) -> PreTrainedTokenizerFast:
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_its_ids_stay_and_every_text_ends_in_eos_and_nothing_else(tmp_path: Path, kind: Kind) -> None:
    before = Tokenizer.from_file(str(saved(tmp_path / "theirs", kind) / "tokenizer.json"))
    before.post_processor = None
    before.no_truncation()
    before.no_padding()
    tokenizer = reloaded(load_tokenizer(tmp_path / "theirs"), tmp_path / "run")
    for token, number in before.get_vocab().items():
        assert tokenizer.convert_tokens_to_ids(token) == number
    for text in TEXTS:
        expected = [*before.encode(text).ids, tokenizer.eos_token_id]
        assert tokenizer(text)["input_ids"] == expected
        assert Encoder(tokenizer).targets([text]) == [expected]
        assert tokenizer.decode(expected, skip_special_tokens=True) == before.decode(expected[:-1])
    assert list(tokenizer("a dog")) == ["input_ids", "attention_mask"]  # what generate() of our models takes
    assert tokenizer.padding_side == "right"


@pytest.mark.parametrize(
    ("kind", "own", "added"),
    [
        (like_gpt2, {"bos": "<|end|>", "eos": "<|end|>", "unk": "<|end|>"}, ["pad", "sep"]),
        (like_t5, {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, ["bos", "sep"]),
        (like_bert, {"pad": "[PAD]", "unk": "[UNK]", "sep": "[SEP]"}, ["bos", "eos"]),
        (ours, {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "sep": "<sep>"}, []),
    ],
)
def test_its_special_tokens_are_used_and_missing_ones_are_added_at_the_end(
    tmp_path: Path, kind: Kind, own: dict[str, str], added: list[str]
) -> None:
    before, _ = kind()
    tokenizer = reloaded(load_tokenizer(saved(tmp_path / "theirs", kind)), tmp_path / "run")
    for name, token in own.items():
        assert getattr(tokenizer, f"{name}_token") == token
        assert getattr(tokenizer, f"{name}_token_id") == before.token_to_id(token)
    new = range(before.get_vocab_size(), len(tokenizer))
    assert sorted(getattr(tokenizer, f"{name}_token_id") for name in added) == list(new)


def test_special_tokens_that_older_versions_wrote_beside_are_found(tmp_path: Path) -> None:
    folder = saved(tmp_path, like_bert)
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "[PAD]"}}))
    assert load_tokenizer(folder).pad_token_id == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_special_token_of_ours_in_a_text_is_text(tmp_path: Path, kind: Kind) -> None:
    tokenizer = reloaded(load_tokenizer(saved(tmp_path / "theirs", kind)), tmp_path / "run")
    for token in (tokenizer.eos_token, tokenizer.pad_token, tokenizer.sep_token):
        ids = tokenizer(f"a {token} b{token}", add_special_tokens=False)["input_ids"]
        assert not {tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.sep_token_id} & set(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_new_tags_and_symbols_get_new_ids_and_text_does_not_become_them(tmp_path: Path, kind: Kind) -> None:
    before = load_tokenizer(saved(tmp_path / "theirs", kind))
    columns = Columns((None, ";"))
    tokenizer = reloaded(with_tokens(before, columns, [";V", ";é", ";<s>"], ["<2de>", "to German: "]), tmp_path / "run")
    assert {token: tokenizer.get_vocab()[token] for token in before.get_vocab()} == before.get_vocab()
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(before) + 4))
    encoder = Encoder(tokenizer)
    (ids,) = encoder.sources([("a dog", "V;é;<s>")], "<2de>")
    assert set(ids) & set(range(len(before), len(tokenizer))) == set(range(len(before), len(tokenizer)))
    assert (ids[0], ids[-5], ids[-1]) == (
        encoder.tag("<2de>"),
        tokenizer.sep_token_id,
        tokenizer.eos_token_id,
    )
    for text in ("<2de>", ";V", " ;V", "a ;é b", " <2de> ;V"):
        assert max(tokenizer(text)["input_ids"]) < len(before)
    again = with_tokens(tokenizer, columns, [";V", ";new"], ["<2de>", "<2fr>"])
    assert len(again) == len(tokenizer) + 2
    assert Encoder(again).prefixes == ["<2de>", "to German: ", "<2fr>"]


def test_symbols_of_targets_are_taken_only_where_they_are_known_to_be_decoded(tmp_path: Path) -> None:
    columns = Columns((None,), " ")
    trained = train_tokenizer(["abc"], "character", columns=columns, symbols=[" AH", " B"])
    trained.save_pretrained(tmp_path / "ours")
    tokenizer = reloaded(with_tokens(load_tokenizer(tmp_path / "ours"), columns, [" B", " EY"], []), tmp_path / "run")
    assert tokenizer.batch_decode(Encoder(tokenizer).targets(["EY B"]), skip_special_tokens=True) == ["EY B"]
    assert tokenizer.convert_tokens_to_ids(" EY") == len(trained)
    with pytest.raises(InvalidDataError, match=r"targets of the data are symbols .* and those of the tokenizer text"):
        with_tokens(load_tokenizer(saved(tmp_path / "theirs", like_gpt2)), columns, [" B"], [])


def test_a_tokenizer_of_an_earlier_kind_encodes_as_before_and_gets_tags() -> None:
    folder = Path(__file__).parent / "hybrid"
    before = AutoTokenizer.from_pretrained(folder)
    tokenizer = with_tokens(load_tokenizer(folder), Columns(), [], ["<2de>"])
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == before(text)["input_ids"]
    assert Encoder(tokenizer).tag("<2de>") == len(before)


def test_a_tag_that_is_a_special_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match=r"prefix '<\|end\|>': there is a special token of this name"):
        with_tokens(load_tokenizer(saved(tmp_path, like_gpt2)), Columns(), [], ["<|end|>"])


@pytest.mark.parametrize("kind", [like_gpt2, ours])
def test_dropout_is_possible_with_bytes(tmp_path: Path, kind: Kind) -> None:
    refuse_dropout(load_tokenizer(saved(tmp_path, kind)), TEXTS, 0.1)


def with_whole_words(state: dict[str, Any]) -> None:
    """A word that no merge leads to, but that is looked up before merging, as in tokenizers of Llama 3."""
    state["model"]["vocab"]["Ġdog"] = len(state["model"]["vocab"])
    state["model"]["ignore_merges"] = True


def test_dropout_is_refused_where_it_would_make_other_tokens(tmp_path: Path) -> None:
    for kind, why in ((like_t5, "Unigram"), (like_bert, "WordPiece")):
        with pytest.raises(InvalidDataError, match=rf"tokenizer\.dropout: 0\.1 needs byte-pair .* {why}"):
            refuse_dropout(load_tokenizer(saved(tmp_path, kind)), TEXTS, 0.1)
    changed(saved(tmp_path, like_gpt2), with_whole_words)
    with pytest.raises(InvalidDataError, match=r"'a small dog runs .*' would have other tokens"):
        refuse_dropout(load_tokenizer(tmp_path), TEXTS, 0.1)


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "tokenizer.json"
    state = json.loads(file.read_text())
    change(state)
    file.write_text(json.dumps(state))


def with_a_huge_id(state: dict[str, Any]) -> None:
    state["model"]["vocab"]["huge"] = 2**32 - 1


def with_an_id_twice(state: dict[str, Any]) -> None:
    state["model"]["vocab"]["again"] = 7


def with_a_panic(state: dict[str, Any]) -> None:
    state["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


def with_a_merge_of_nothing(state: dict[str, Any]) -> None:
    state["model"]["merges"] = [["no", "where"]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_a_huge_id, "'huge' has the id 4,294,967,295 where 290 would be next"),
        (with_an_id_twice, "has the id 7 where 8 would be next"),
        (with_a_panic, "is no usable tokenizer: Precompiled"),
        (with_a_merge_of_nothing, "is no usable tokenizer: Token `no` out of vocabulary"),
    ],
)
def test_a_crafted_tokenizer_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    changed(saved(tmp_path, like_gpt2), change)
    with pytest.raises(InvalidDataError) as refusal:
        load_tokenizer(tmp_path)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert capfd.readouterr().err == ""  # the panic of the library says nothing of its own


def test_a_tokenizer_that_does_not_load_in_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(existing_tokenizer, "MOST_SECONDS", 0.01)
    with pytest.raises(InvalidDataError, match=r"did not load in 0\.01 seconds"):
        load_tokenizer(saved(tmp_path, like_gpt2))


def test_slow_tokenizers_and_code_are_refused(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").touch()
    with pytest.raises(InvalidDataError, match=r"has no tokenizer\.json \(only spiece\.model\).*convert it once with"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_own.py").write_text("raise SystemExit('code that came with a tokenizer was run')")
    saved(tmp_path, like_gpt2, auto_map={"AutoTokenizer": [None, "tokenizer_own.Own"]})
    with pytest.raises(InvalidDataError, match="code that came with it"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("[]", "must be a JSON object"),
        ("{", "cannot be read"),
        ('{"eos_token": 5}', "eos_token: 5 is not a token"),
        ('{"columns": {"target": null}}', "says no columns"),
        ('{"columns": 7}', "says no columns"),
    ],
)
def test_broken_settings_are_refused(tmp_path: Path, settings: str, said: str) -> None:
    saved(tmp_path, like_gpt2)
    (tmp_path / "tokenizer_config.json").write_text(settings)
    with pytest.raises(InvalidDataError, match=said):
        load_tokenizer(tmp_path)

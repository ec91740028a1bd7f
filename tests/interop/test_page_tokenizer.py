"""The tokenizer of the page, run by node, gives the ids and texts of the tokenizers library."""

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

import hf_vanilla.interop
from hf_vanilla.data.tokenizer import Columns, Encoder, TokenizerKind, train_tokenizer
from hf_vanilla.inference.translator import well_formed
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.page_tokenizer import for_page

NODE = shutil.which("node")
PAGE = Path(hf_vanilla.interop.__file__).parent / "page"
KINDS: list[TokenizerKind] = ["bpe", "character", "word"]
TRAINED = [
    "Two dogs are playing in the snow, aren't they? It's 1984.",
    "ΌΣΟΣ ΣΟΦΟΣ σοφός İstanbul ǅ straße Ñandú",
    "这是一个句子。 日本語の文 한국어",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया",
    "cost: 3½ €, 25 %",
]
HARD = [
    *(
        "",
        " ",
        "  a  b ",
        "a\u0085b",
        "a\ufeffb",
        "\ufeff",
        "a\u00a0b\u2003c\u3000d",
        "a\u200bb\u200dc",
        "\x1c\x1d\x00",
    ),
    *(
        "</s>",
        "<s> </s><pad><unk><sep>",
        "a</s>b",
        "< /s>",
        "<0x41>",
        "Ġ",
        "ĠTwo",
        " Two",
        "<2de>",
        " <2de>",
        "; x",
        ";V",
    ),
    *("e\u0301", "\u1e9b\u0323", "\u212b", "\u0344", "ﬁ", "한", "\u1112\u1161\u11ab", "\U0001f468\u200d\U0001f469"),
    *("ΌΣΟΣ", "ΣΑΣ Σ", "İI", "ǅ", "ß", "ẞ", "\u13a0", "\uab70", "\u1c89", "Ω"),
    *("٣٤٥", "\uff11\uff12", "½", "Ⅷ", "x2y3", "12 345", "1\u00a02", "②", "\u3007", "a1", " 1 "),
    *("it's", "IT'S", "we'll've", "''s", "'s", "\n\n a", "a \n b\t\tc   ", "a   b", "   ", "\r\n", "!?!? ... —"),
    *("\ud800", "a\udc00b", "\U0010ffff", "\ufffd", "\U000e0001", "q" * 60, "ab" * 40, "Two dogs " * 20),
]


def hard_texts(number: int = 600) -> list[str]:
    """The ones above, and random ones of their pieces and of characters from all of Unicode."""
    drawn = random.Random(3)  # noqa: S311
    pieces = [*HARD, *TRAINED, *(word for text in TRAINED for word in text.split())]
    blocks = [(32, 127), (128, 0x500), (0x500, 0x2000), (0x2000, 0x3100), (0x3100, 0xD800), (0xF900, 0x10000)]
    blocks.append((0x10000, 0x1F700))
    texts = list(HARD)
    while len(texts) < number:
        several = drawn.choices(pieces, k=drawn.randint(1, 4))
        several += ["".join(chr(drawn.randrange(*drawn.choice(blocks))) for _ in range(drawn.randint(0, 8)))]
        drawn.shuffle(several)
        texts.append(drawn.choice(["", " ", "  "]).join(several))
    return texts


def ask(tokenizer: PreTrainedTokenizerFast, sources: Any, targets: Any) -> dict[str, Any]:
    if NODE is None:
        pytest.skip("there is no node to run JavaScript with")
    asked = json.dumps({"vocabulary": for_page(tokenizer), "sources": sources, "targets": targets})
    command = [NODE, str(Path(__file__).with_name("ask_tokenizer.mjs")), str(PAGE / "tokenizer.mjs")]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def check_same(tokenizer: PreTrainedTokenizerFast, sources: list[tuple[list[str], str]]) -> None:
    encoder, drawn = Encoder(tokenizer), random.Random(5)  # noqa: S311
    parts = [[well_formed(part) for part in each] for each, _ in sources]
    wanted = [encoder.sources([each], prefix)[0] for each, (_, prefix) in zip(parts, sources, strict=True)]
    number = len(tokenizer)
    targets = [
        *wanted,
        *(row[1:] for row in wanted),
        *(drawn.choices(range(number), k=drawn.randint(0, 12)) for _ in range(300)),
    ]
    found = ask(tokenizer, sources, targets)
    for source, ours, theirs in zip(sources, found["ids"], wanted, strict=True):
        assert ours == theirs, source
    assert found["texts"] == tokenizer.batch_decode(targets, skip_special_tokens=True)


@pytest.mark.parametrize("lowercase", [False, True], ids=["cased", "lowercase"])
@pytest.mark.parametrize("kind", KINDS)
def test_hard_texts_have_the_same_ids_and_ids_the_same_texts(
    kind: TokenizerKind, lowercase: bool, tmp_path: Path
) -> None:
    texts = [well_formed(text) for text in [*TRAINED, *HARD]]  # so that merges cross where texts could be cut wrongly
    train_tokenizer(texts * 3, kind, 900, lowercase, prefixes=["<2de>", "say: "]).save_pretrained(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    prefixes = ["", "", "", "<2de>", "say: "]
    check_same(tokenizer, [([text], prefixes[place % 5]) for place, text in enumerate(hard_texts())])


@pytest.mark.parametrize("separator", [";", " ", "\u00b7", "<"])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_symbols_are_cut_looked_up_or_spelt(kind: TokenizerKind, separator: str, tmp_path: Path) -> None:
    columns = Columns((None, separator), separator)
    symbols = [separator + symbol for symbol in ("V", "PST", "AH0", "ß", "</s>")]
    train_tokenizer(TRAINED, kind, 420, columns=columns, symbols=symbols, prefixes=["<2de>"]).save_pretrained(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    features = ["V;PST", "V PST", "V·AH0·ß", "", ";", "X;V", "</s>", "V;</s> PST·12 a", " V", "a</s><V"]
    texts = hard_texts(120)
    sources = [([text, features[place % len(features)]], ["", "<2de>"][place % 2]) for place, text in enumerate(texts)]
    check_same(tokenizer, [*sources, *(([text], "") for text in texts), *((["a", text], "") for text in texts)])


def test_labels_of_tokens_are_never_empty() -> None:
    for kind in KINDS:
        tokenizer = train_tokenizer(TRAINED, kind, 420)
        labels = ask(tokenizer, [], [])["labels"]
        assert len(labels) == len(tokenizer)
        assert all(label.strip() for label in labels)


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    tokenizer = train_tokenizer(TRAINED, "bpe", 420)
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend(" ")])
    with pytest.raises(InteropError, match="none that this package trains"):
        for_page(tokenizer)


def test_the_tokenizer_that_looks_up_whole_words_is_refused() -> None:
    """As some published ones do (`ignore_merges`)."""
    folder = Path(__file__).parents[1] / "data" / "hybrid"
    with pytest.raises(InteropError, match="none that this package trains"):
        for_page(PreTrainedTokenizerFast.from_pretrained(folder))

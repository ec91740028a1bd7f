"""Tokenizers for the vocabularies of toolkits."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.imports import fairseq
from hf_vanilla.interop.imports.checkpoint import import_checkpoint
from hf_vanilla.interop.imports.frame import assembled
from hf_vanilla.interop.imports.sentencepiece_model import NORMAL, UNUSED, SentencePieces, restricted
from hf_vanilla.interop.imports.vocabularies import Vocabulary
from hf_vanilla_cli import main

DATA = Path(__file__).parent / "data"
CODES = (
    "#version: 0.2\nn e\nw e\nw i\nwi d\ns t</w>\nl o\nwid e\nwe st</w>\nwe r</w>\nne w</w>\nwide st</w>\nwide r</w>\n"
    "wid e</w>\nw s</w>\n"
)
# What subword-nmt 0.3.8 makes of texts with these merges.
SEGMENTED = {
    "lowest newest": "lo@@ west ne@@ west",
    "widen the renewal": "wide@@ n t@@ h@@ e r@@ e@@ ne@@ w@@ a@@ l",
    "slow  élan": "s@@ lo@@ w é@@ l@@ a@@ n",
    "news nnneww": "ne@@ ws n@@ n@@ ne@@ w@@ w",
}
TOKENS = ["lo@@", "west", "ne@@", "wide@@", "n", "t@@", "h@@", "r@@", "e@@", "w@@", "é@@", "new"]


@pytest.fixture
def subwords(tmp_path: Path) -> Path:
    """A checkpoint of fairseq whose twelve tokens are pieces of words."""
    folder = Path(shutil.copytree(DATA / "fairseq_post_sinusoidal_tied", tmp_path / "checkpoint"))
    for file in folder.glob("dict.*.txt"):
        file.write_text("".join(f"{token} 1\n" for token in TOKENS))
    (folder / "codes").write_text(CODES)
    return folder


@torch.no_grad()
def test_subwords_have_the_embeddings_that_fairseq_looks_up(subwords: Path) -> None:
    """Pieces that the dictionary does not have are one token each, with the embedding of the unknown one."""
    found = fairseq.read(subwords, segmented=False)
    embeddings = assembled(found).get_input_embeddings().weight
    ids = {token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *TOKENS])}
    for text, segments in SEGMENTED.items():
        expected = [ids.get(token, 3) for token in segments.split()] + [2]
        given = found.tokenizer(text)["input_ids"]
        assert len(given) == len(expected)
        assert torch.equal(embeddings[given], embeddings[expected])
    assert any(number >= len(ids) for text in SEGMENTED for number in found.tokenizer(text)["input_ids"])
    decoded = found.tokenizer.decode([ids["lo@@"], ids["west"], ids["ne@@"], ids["new"], 2], skip_special_tokens=True)
    assert decoded == "lowest nenew"


def test_segmented_texts_are_looked_up_as_they_are(subwords: Path) -> None:
    found = fairseq.read(subwords, segmented=True)
    assert found.tokenizer("lo@@ west  new lowest")["input_ids"] == [4, 5, 15, 3, 2]
    assert found.number == 16


def test_missing_merges_are_asked_for(subwords: Path, tmp_path: Path) -> None:
    (subwords / "codes").unlink()
    with pytest.raises(InteropError, match=r"merges of subword-nmt is missing: put it there as bpecodes.*--segmented"):
        import_checkpoint(subwords, "fairseq", tmp_path / "run")
    (subwords / "codes").write_text("a b\n")
    with pytest.raises(InteropError, match=r"version 0\.2"):
        import_checkpoint(subwords, "fairseq", tmp_path / "run")


@torch.no_grad()
def test_white_space_of_other_scripts_is_part_of_a_merge(subwords: Path) -> None:
    """Lines end at line feeds, and the two parts stand around a space: as subword-nmt reads them."""
    expected = fairseq.read(subwords, segmented=False).tokenizer
    (subwords / "codes").write_text(CODES + "x \u3000\r\ny\u2028 z\n\n", newline="")
    found = fairseq.read(subwords, segmented=False).tokenizer
    assert found.get_vocab().keys() - expected.get_vocab().keys() == {
        *("x", "\u3000", "x\u3000"),
        *("y\u2028", "z", "y\u2028z"),
    }
    for text in SEGMENTED:
        assert found(text)["input_ids"] == expected(text)["input_ids"]


def test_a_line_that_is_no_merge_is_named(subwords: Path, tmp_path: Path) -> None:
    (subwords / "codes").write_text(CODES + "a b c\n")
    with pytest.raises(InteropError, match="'a b c' is no merge of subword-nmt, which has two parts"):
        import_checkpoint(subwords, "fairseq", tmp_path / "run")


def test_a_name_on_the_hub_is_to_be_downloaded_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, advice in (("user/opus", "hf download user/opus --local-dir FOLDER"), ("opus.pt", "does not exist")):
        done = CliRunner().invoke(main, ["import", name, "--from", "marian", "--output", "run"])
        assert done.exit_code == 2
        assert advice in " ".join(done.output.split())


def test_source_and_target_share_the_tokens_that_they_share() -> None:
    vocabulary = Vocabulary.of(["<pad>", "a", "b", "c"], ["<pad>", "c", "x", "a"])
    assert vocabulary.tokens == ["<pad>", "c", "x", "a", "b"]
    assert (vocabulary.source, vocabulary.target) == ([0, 3, 4, 1], [0, 1, 2, 3])
    with pytest.raises(InteropError, match="twice"):
        Vocabulary.of(["a", "a"], ["a"])


def test_pieces_outside_of_a_vocabulary_are_not_used_but_single_characters_are() -> None:
    model = SentencePieces({"▁ab": (-1.0, NORMAL), "cd": (-2.0, NORMAL), "e": (-3.0, NORMAL)})
    kinds = {piece: kind for piece, (_, kind) in restricted(model, {"cd"}).pieces.items()}
    assert kinds == {"▁ab": UNUSED, "cd": NORMAL, "e": NORMAL}


def test_joeynmt_with_sentencepiece_gives_the_ids_of_its_vocabulary(tmp_path: Path) -> None:
    """With a vocabulary of all pieces, JoeyNMT's pieces are those of SentencePiece, which are recorded."""
    marian = json.loads((DATA / "marian" / "ids.json").read_text())
    vocabulary = json.loads((DATA / "marian" / "vocab.json").read_text())
    tokens = [token for token in vocabulary if token not in ("</s>", "<unk>", "<pad>", ">>deu<<")] + marian["missing"]
    folder = Path(shutil.copytree(DATA / "joeynmt_post_unscaled", tmp_path / "checkpoint"))
    shutil.copy(DATA / "marian" / "source.spm", folder / "sp.model")
    text = (folder / "config.yaml").read_text()
    cut = "level: bpe\n      tokenizer_cfg: {model_file: /elsewhere/sp.model}"
    cut = cut.replace("\n      ", "\n    ")
    (folder / "config.yaml").write_text(text.replace("level: word", cut))
    for side in ("src", "trg"):
        (folder / f"{side}_vocab.txt").write_text("\n".join(["<unk>", "<pad>", "<s>", "</s>", *tokens]))
    stored = torch.load(folder / "best.ckpt", weights_only=True)
    for name in ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"):
        stored["model_state"][name] = torch.randn(len(tokens) + 4, 8)
    torch.save(stored, folder / "best.ckpt")
    import_checkpoint(folder, "joeynmt", tmp_path / "run")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    names = {number: token for token, number in vocabulary.items()}
    for line, ids in zip(marian["lines"], marian["ids"], strict=True):
        if -1 in ids or 1 in ids or ">>deu<<" in line:
            continue
        found = tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"])
        assert found == [names[number] for number in ids]
    assert tokenizer("the barn ran")["input_ids"][-1] == 3

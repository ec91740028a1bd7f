"""Checkpoints that fairseq and JoeyNMT wrote themselves, with the logits that they computed (trial_record.py)."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import warm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.imports.checkpoint import READERS, import_checkpoint
from hf_vanilla.interop.imports.frame import assembled
from hf_vanilla.interop.imports.vocabularies import Vocabulary

DATA = Path(__file__).parent / "data"
RECORDED = sorted(folder.name for folder in DATA.iterdir() if (folder / "recorded.json").exists())


def toolkit_of(name: str) -> str:
    return name.split("_")[0]


def joint_ids(folder: Path) -> Vocabulary:
    """Our ids of the ids of source and target, counted from the files of the toolkit by the test itself."""
    sides = []
    for names in (("dict.src.txt", "src_vocab.txt"), ("dict.tgt.txt", "trg_vocab.txt")):
        (file,) = (folder / name for name in names if (folder / name).exists())
        lines = file.read_text().splitlines()
        special = ["<s>", "<pad>", "</s>", "<unk>"] if file.suffix == ".txt" and file.name.startswith("dict") else []
        sides.append(special + [line.rsplit(" ", 1)[0] for line in lines])
    source, target = sides
    tokens = target + [token for token in source if token not in target]
    return Vocabulary(tokens, [tokens.index(token) for token in source], list(range(len(target))))


@torch.no_grad()
@pytest.mark.parametrize("name", RECORDED)
def test_logits_are_those_that_the_toolkit_computed(name: str, tmp_path: Path) -> None:
    import_checkpoint(DATA / name, toolkit_of(name), tmp_path / "run")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run").double()
    recorded = json.loads((DATA / name / "recorded.json").read_text())
    assert (
        recorded["target"][0][0]
        == model.config.decoder_start_token_id
        == model.generation_config.decoder_start_token_id
    )
    ids, source, target = joint_ids(DATA / name), torch.tensor(recorded["source"]), torch.tensor(recorded["target"])
    found = model(torch.tensor(ids.source)[source], (source != 1).long(), torch.tensor(ids.target)[target]).logits
    expected = torch.tensor(recorded["logits"], dtype=torch.float64)
    # fairseq computes its attention weights in float32, and what is written into matrices is rounded to float32.
    error = 1e-12 if name == "joeynmt_pre_tied" else 2e-6
    torch.testing.assert_close(found[..., ids.target], expected, rtol=0, atol=error)
    # Tokens that only the source has change no probability.
    torch.testing.assert_close(found.log_softmax(-1)[..., ids.target], expected.log_softmax(-1), rtol=0, atol=error)


@pytest.mark.parametrize("name", [name for name in RECORDED if (DATA / name / "ids.json").exists()])
def test_ids_are_those_of_the_toolkit(name: str, tmp_path: Path) -> None:
    import_checkpoint(DATA / name, toolkit_of(name), tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    recorded = json.loads((DATA / name / "ids.json").read_text())
    ours = joint_ids(DATA / name).source
    assert tokenizer(recorded["lines"])["input_ids"] == [[ours[number] for number in ids] for ids in recorded["ids"]]


@pytest.mark.parametrize(
    ("name", "is_tied"),
    [("joeynmt_pre_tied", True), ("fairseq_post_sinusoidal_tied", True), ("fairseq_two_dictionaries", False)],
)
def test_one_vocabulary_keeps_one_matrix(name: str, is_tied: bool) -> None:
    found = READERS[toolkit_of(name)](DATA / name, False)
    assert assembled(found).config.tie_word_embeddings is is_tied


def test_the_command_imports_and_translate_takes_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hf_vanilla"]
    checkpoint, run = DATA / "joeynmt_pre_tied" / "best.ckpt", tmp_path / "run"
    done = warm.run([*command, "import", str(checkpoint), "--from", "joeynmt", "--output", str(run)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "lines").write_text("abba\ncafe\n")
    done = warm.run([*command, "translate", str(run), "--input", "lines", "--output", "out"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out").read_text().splitlines()) == 2
    settings = json.loads((run / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (run / "modeling_vanilla.py").exists()


def test_a_refused_import_leaves_nothing(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "joeynmt_pre_tied", tmp_path / "checkpoint")
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("layer_norm: pre", "layer_norm: post", 1))
    with pytest.raises(InteropError, match="layer_norm"):
        import_checkpoint(folder, "joeynmt", tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]

"""Checkpoints that are damaged or made to harm: one line, nothing executed, nothing written."""

import argparse
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.imports.checkpoint import import_checkpoint

DATA = Path(__file__).parent / "data"


class Code:
    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.fixture
def refuse(tmp_path: Path) -> Callable[..., str]:
    """`refuse(match, change, name)`: a recorded checkpoint is refused after the change."""

    def check(match: str, change: Callable[[Path], None], name: str = "fairseq_post_sinusoidal_tied") -> str:
        folder = Path(shutil.copytree(DATA / name, tmp_path / "checkpoint"))
        change(folder)
        with pytest.raises(InteropError, match=match) as raised:
            import_checkpoint(folder, name.split("_")[0], tmp_path / "run")
        assert "\n" not in str(raised.value)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]
        return str(raised.value)

    return check


def changed(change: Callable[[dict[str, Any]], object], **options: Any) -> Callable[[Path], None]:
    """Loads the checkpoint, changes it and saves it again."""

    def apply(folder: Path) -> None:
        (file,) = [*folder.glob("*.pt"), *folder.glob("*.ckpt")]
        with torch.serialization.safe_globals([argparse.Namespace]):
            stored = torch.load(file, weights_only=True)
        change(stored)
        torch.save(stored, file, **options)

    return apply


def test_code_in_a_pickle_is_not_executed(refuse: Callable[..., str], tmp_path: Path) -> None:
    command = f"touch {tmp_path / 'executed'}"
    refuse("without running code from it: .*system", changed(lambda stored: stored.update(extra=Code(command))))


def test_code_in_a_namespace_is_not_executed(refuse: Callable[..., str], tmp_path: Path) -> None:
    options = argparse.Namespace(encoder=Code(f"touch {tmp_path / 'executed'}"))
    refuse("without running code", changed(lambda stored: stored.update(args=options)), "fairseq_pre_learned")


def test_a_bare_pickle_is_refused(refuse: Callable[..., str], tmp_path: Path) -> None:
    code = pickle.dumps(Code(f"touch {tmp_path / 'executed'}"))
    refuse("no archive of PyTorch", lambda folder: (folder / "checkpoint_best.pt").write_bytes(code) and None)


def test_older_files_of_pytorch_are_refused_by_name(refuse: Callable[..., str]) -> None:
    refuse("before 1.6", changed(lambda stored: None, _use_new_zipfile_serialization=False))


def test_a_compressed_archive_is_refused(refuse: Callable[..., str]) -> None:
    def compress(folder: Path) -> None:
        file = folder / "checkpoint_best.pt"
        with zipfile.ZipFile(file) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in entries.items():
                archive.writestr(name, content)

    refuse("compressed", compress)


@pytest.mark.parametrize(
    ("match", "name", "value"),
    [
        ("claims the shape", "encoder.layers.0.fc1.weight", torch.zeros(1).expand(10**9, 10**6)),
        ("not finite", "encoder.layers.0.fc1.weight", torch.full((12, 8), torch.inf)),
        ("int64, and must be", "encoder.layers.0.fc1.weight", torch.zeros(12, 8, dtype=torch.int64)),
        ("str, and must be", "encoder.layers.0.fc1.weight", "text"),
        (r"would have the shape \(8, 12\)", "encoder.layers.0.fc1.weight", torch.zeros(8, 12)),
        ("layers.0.extra.*has not", "encoder.layers.0.extra", torch.zeros(2)),
        ("the embedding of the source has the shape", "encoder.embed_tokens.weight", torch.zeros(3, 8)),
    ],
)
def test_a_wrong_weight_is_named(refuse: Callable[..., str], match: str, name: str, value: Any) -> None:
    refuse(match, changed(lambda stored: stored["model"].update({name: value})))


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("layernorm_embedding", {"layernorm_embedding": True}),
        ("adaptive_softmax_cutoff", {"adaptive_softmax_cutoff": [1, 2]}),
        ("encoder_normalize_before .True. and decoder", {"encoder_normalize_before": True}),
        ("activation_fn .'crelu'.", {"activation_fn": "crelu"}),
        ("positions of width 8 are too many", {"max_source_positions": 10**9, "max_target_positions": 10**9}),
        ("encoder_layers: 1000000000, and the weights are of 1", {"encoder_layers": 10**9}),
        ("decoder_input_dim must be", {"encoder_embed_dim": 10**9, "decoder_embed_dim": 10**9}),
        ("would have the shape", {"encoder_ffn_embed_dim": 10**9, "decoder_ffn_embed_dim": 10**9}),
        ("d_model|num_heads", {"encoder_attention_heads": 3, "decoder_attention_heads": 3}),
        ("encoder_layers", {"encoder_layers": "six"}),
    ],
)
def test_options_that_cannot_be_are_named(refuse: Callable[..., str], match: str, options: dict[str, Any]) -> None:
    refuse(match, changed(lambda stored: stored["cfg"]["model"].update(options)))


def test_a_dictionary_of_another_model_is_named(refuse: Callable[..., str]) -> None:
    def shorten(folder: Path) -> None:
        for file in folder.glob("dict.*.txt"):
            file.write_text("w0 1\nw1 1\n")

    refuse("does not fit", shorten)


@pytest.mark.parametrize(
    ("match", "before", "after"),
    [
        ("alpha", "ff_size: 12", "ff_size: 12\n    alpha: 1.2"),
        ("layer_norm must be given", "layer_norm: pre", "layer_norm_: pre"),
        ("type 'recurrent'|type must be given", "type: transformer", "type: recurrent"),
        ("normalize changes texts", "normalize: false", "normalize: true"),
        ("has aliases", "name: joeynmt_pre_tied", "name: &a [x]\nother: *a"),
        ("is no YAML", "name: joeynmt_pre_tied", "name: [\n"),
        ("data: level is not the same", "level: char", "level: word"),
        ("has no section src: it is no configuration of JoeyNMT 2", "data:\n  src:\n", "data:\n  src: de\n  more:\n"),
    ],
)
def test_a_joeynmt_that_is_not_ours_is_named(refuse: Callable[..., str], match: str, before: str, after: str) -> None:
    def edit(folder: Path) -> None:
        file = folder / "config.yaml"
        text = file.read_text()
        assert before in text
        count = 1 if "level" in before else -1
        file.write_text(text.replace(before, after, count))

    refuse(match, edit, "joeynmt_pre_tied")

"""What tests of exports share, with the models with tokenizers that tests of inference have."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from inference.conftest import make_translator, run
from safetensors.torch import load_file, save_file

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.data.tokenizer import train_tokenizer

__all__ = ["make_translator", "run"]

WITHOUT_US = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'hf_vanilla':
            raise ImportError(name)
sys.meta_path.insert(0, Refused())
"""


@pytest.fixture
def make_run(make_model: Callable[..., Model], tmp_path: Path) -> Callable[..., tuple[Path, Model]]:
    """`make_run(name, **changes)`: a directory as a training leaves it, and its model in float64."""

    def make(name: str = "run", **changes: object) -> tuple[Path, Model]:
        tokenizer = train_tokenizer(["abcdefghijk lmnop"], "character")
        model = make_model(vocab_size=len(tokenizer), **changes)
        model.generation_config.update(max_length=12, num_beams=3)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return tmp_path / name, model.double()

    return make


@pytest.fixture
def run_without_us(tmp_path: Path) -> Callable[[str], None]:
    """Runs Python that cannot import this package."""

    def run(code: str) -> None:
        command = [sys.executable, "-c", WITHOUT_US + code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture
def ids() -> tuple[torch.Tensor, torch.Tensor]:
    """Sources, of which one is padded on the right, and the beginnings of targets."""
    source, target = torch.randint(5, 270, (3, 7)), torch.randint(5, 270, (3, 5))
    source[1, 5:] = 1
    target[:, 0] = 0
    return source, target


@pytest.fixture
def answers_without_us(
    run_without_us: Callable[[str], None], ids: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> Callable[..., list[dict[str, torch.Tensor]]]:
    """
    `answers_without_us(export, runs, code)`: run n is exported to the folder `exportedN`. The code, which cannot import
    this package, reads `given.safetensors` with the ids; what it writes to `answer_of_exportedN` is returned.
    """

    def answers(export: Callable[[Path, Path], None], runs: Sequence[Path], code: str) -> list[dict[str, torch.Tensor]]:
        save_file(dict(zip(("source", "target"), ids, strict=True)), tmp_path / "given.safetensors")
        for number, folder in enumerate(runs):
            (tmp_path / f"exported{number}").mkdir()
            export(folder, tmp_path / f"exported{number}")
        run_without_us(code)
        return [load_file(tmp_path / f"answer_of_exported{number}") for number in range(len(runs))]

    return answers

"""A saved model loads and generates where this package is not installed: its code lies beside its weights."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import dynamic_module_utils

from hf_vanilla import VanillaForConditionalGeneration

STRANGER = """
import json, sys
sys.modules["hf_vanilla"] = None  # importing it now fails, as where it is not installed
import torch
from transformers import AutoModelForSeq2SeqLM

try:
    import hf_vanilla
except ImportError:
    pass
else:
    raise SystemExit("hf_vanilla can be imported")

directories, inputs = json.loads(sys.argv[1]), json.loads(sys.argv[2])
inputs = {key: torch.tensor(value) for key, value in inputs.items()}
source = {key: value for key, value in inputs.items() if key != "labels"}
searches = [{"num_beams": 3}, {"num_beams": 3, "length_penalty_type": "gnmt", "max_length_beyond_source": 3}]
found = []
for directory in directories:
    model = AutoModelForSeq2SeqLM.from_pretrained(directory, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    guard = sys.modules[type(model).__module__.replace("modeling_vanilla", "guard_vanilla")]
    assert guard.is_exactly_ours(model)  # so that the fast search is taken here, too
    model.save_pretrained(directory + "-again")
    texts = [model.generate(**source, max_new_tokens=9, **search).tolist() for search in searches]
    found.append({"logits": model(**inputs).logits.tolist(), "texts": texts})
print(json.dumps(found))
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where transformers puts the code that comes with models."""
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def load_as_a_stranger(directories: list[Path], inputs: dict[str, Tensor], cache: Path) -> list[dict[str, list]]:
    """What models compute in one interpreter that cannot import this package, which saves each of them again."""
    arguments = [[str(directory) for directory in directories], {name: row.tolist() for name, row in inputs.items()}]
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, *map(json.dumps, arguments)],
        env={"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(cache), "PATH": ""},
        cwd=cache,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_the_package_logits_and_texts_are_the_same(
    make_model: Callable[..., VanillaForConditionalGeneration], ragged: dict[str, Tensor], tmp_path: Path, cache: Path
) -> None:
    """And what a stranger saves loads again, for strangers and for us."""
    models = [make_model(), make_model(norm_first=True, position_embedding_type="learned", d_v=3)]
    for model, name in zip(models, ("paper", "other"), strict=True):
        model.save_pretrained(tmp_path / name)
    directories = [tmp_path / "paper", tmp_path / "other", tmp_path / "paper-again"]
    *found, again = load_as_a_stranger(directories, ragged, cache)
    inputs = {key: value for key, value in ragged.items() if key != "labels"}
    gnmt = {"length_penalty_type": "gnmt", "max_length_beyond_source": 3}
    for model, outputs in zip(models, found, strict=True):
        torch.testing.assert_close(torch.tensor(outputs["logits"]), model(**ragged).logits)
        texts = [model.generate(**inputs, max_new_tokens=9, num_beams=3, **search) for search in ({}, gnmt)]
        assert outputs["texts"] == [text.tolist() for text in texts]
    assert again == found[0]
    loaded = VanillaForConditionalGeneration.from_pretrained(tmp_path / "paper-again")
    assert torch.equal(loaded(**ragged).logits, models[0](**ragged).logits)


def test_the_code_that_travels_imports_nothing_else_of_ours() -> None:
    files = sorted((Path(__file__).parents[2] / "hf_vanilla" / "models").glob("*_vanilla.py"))
    names = {file.stem for file in files}
    assert {"configuration_vanilla", "generation_vanilla", "modeling_vanilla"} <= names
    for file in files:
        for line in file.read_text().splitlines():
            if line.lstrip().startswith(("import hf_vanilla", "from hf_vanilla", "from .")):
                module = line.split()[1]
                assert module.removeprefix(".") in names, f"{file.name}: {line}"


VERSIONS = {"my model (v2)": 0, "a+b": 1, "a=b": 1, "modèle": 2, "modéle": 3}


@pytest.mark.usefixtures("_own_cache_of_code")
def test_versions_of_the_code_work_side_by_side_from_folders_of_any_name(
    make_model: Callable[..., VanillaForConditionalGeneration], tmp_path: Path
) -> None:
    make_model().save_pretrained(tmp_path / "saved")
    losses = []
    for name, version in VERSIONS.items():
        shutil.copytree(tmp_path / "saved", tmp_path / name)
        code = tmp_path / name / "loss_vanilla.py"
        code.write_text(code.read_text().replace("return loss, states", f"return loss + {1000 * version}, states"))
        model = dynamic_module_utils.get_class_from_dynamic_module("modeling_vanilla.VanillaModel", tmp_path / name)
        losses.append(sys.modules[model.__module__.replace("modeling", "loss")])
    assert len({loss.NAMESPACE for loss in losses}) == len(VERSIONS)  # also where two folders have the same code
    inputs = torch.ones(2, 3), torch.ones(5, 3), torch.zeros(2).long(), -100, 0.0, 0.0, torch.float32, True
    found = [float(loss.chunk_by_chunk(*inputs)[0]) for loss in losses]  # the operators that torch.compile calls
    assert found == pytest.approx([2 * math.log(5) + 1000 * version for version in VERSIONS.values()])

"""What was imported is what a training can start from."""

from pathlib import Path

import pytest
import torch
import yaml

from hf_vanilla.interop.imports.checkpoint import import_checkpoint
from hf_vanilla.training.origin import completed, load_weights, new_origin, tokenizer_of
from hf_vanilla.training.recipe import load_recipe
from hf_vanilla.training.run import new_model

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("name", ["joeynmt_pre_tied", "joeynmt_post_two_vocabularies", "fairseq_post_sinusoidal_tied"])
def test_a_training_starts_from_the_imported_weights(name: str, tmp_path: Path) -> None:
    imported = import_checkpoint(DATA / name, name.split("_")[0], tmp_path / "imported")
    (tmp_path / "train.tsv").write_text("a b\tb a\n" * 4)
    files = {split: {"file": "train.tsv", "source": 0, "target": 1} for split in ("train", "validation")}
    limits = {"max_source_length": 12, "max_target_length": 12}
    recipe = {"data": {"folder": ".", **files, **limits}, "model": {"from": "imported"}, "training": {"max_steps": 2}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    loaded = completed(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "run")
    origin = new_origin(loaded)
    assert origin is not None
    tokenizer = tokenizer_of(loaded, origin)
    model = new_model(loaded, tokenizer)
    load_weights(model, loaded, origin)
    assert loaded.model["norm_first"] is imported.config.norm_first
    for key, weight in imported.state_dict().items():
        assert torch.equal(model.state_dict()[key][: len(weight)], weight), key
    assert tokenizer("a b")["input_ids"][-1] == imported.config.eos_token_id

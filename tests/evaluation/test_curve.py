"""The picture of a run says what its two losses are, as they are not the same quantity."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_vanilla import VanillaConfig
from hf_vanilla.evaluation.curve import draw_learning_curve, loss_labels

RATES = {"label_smoothing": 0.0, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def make_run(folder: Path, subword_dropout: float | None = None, r_drop: float | None = None, **rates: float) -> Path:
    VanillaConfig(**rates).save_pretrained(folder)
    recipe: dict[str, Any] = {"model": rates}
    recipe |= {"tokenizer": {"dropout": subword_dropout}} if subword_dropout is not None else {}
    recipe |= {"training": {"r_drop": r_drop}} if r_drop is not None else {}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    history = [{"step": step, "loss": 6 - step / 100} for step in range(50, 301, 50)]
    history += [{"step": step, "eval_loss": 5 - step / 100, "eval_bleu": step / 10} for step in (100, 200, 300)]
    (folder / "history.json").write_text(json.dumps(history), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("others", "rates", "expected"),
    [
        ((), {}, ["training, with label smoothing 0.1, dropout 0.1", "validation, without"]),
        ((0.05,), RATES | {"dropout": 0.3}, ["training, with dropout 0.3, BPE-dropout 0.05", "validation, without"]),
        ((None, 5), RATES | {"dropout": 0.3}, ["training, with dropout 0.3, R-Drop 5", "validation, without"]),
        ((0.0, 0.0), RATES, ["training", "validation"]),
    ],
    ids=["the defaults of the configuration", "of the recipe", "R-Drop", "neither"],
)
def test_losses_that_are_not_comparable_are_labelled_so(
    others: tuple[float | None, ...], rates: dict[str, float], expected: list[str], tmp_path: Path
) -> None:
    assert list(loss_labels(make_run(tmp_path, *others, **rates)).values()) == expected


def test_the_picture_replaces_an_earlier_one_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    (tmp_path / "learning_curve.png").write_bytes(b"from before")
    picture = draw_learning_curve(make_run(tmp_path, 0.1))
    assert picture == tmp_path / "learning_curve.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("*.partial*"))

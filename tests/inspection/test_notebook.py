"""The notebook: its code runs from the first cell to the last, and it has no outputs that could be old."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.dataset import LengthLimits, encode_corpora
from hf_vanilla.inference.alignments import AlignmentSettings, AttentionMap
from hf_vanilla.inference.translator import Translator

NOTEBOOK = Path(__file__).parents[2] / "docs" / "looking_inside.ipynb"


def code_cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def whole_run(run: Path) -> Path:
    """A run directory as a training leaves it: with its pairs, and with the map that is its alignment."""
    translator = Translator.from_pretrained(run)
    chosen = AlignmentSettings(AttentionMap(1, None, "output"), "word", "character")
    translator.model.generation_config.alignment = chosen.as_dict() | {"error": 0.2, "pairs": 9}
    translator.model.save_pretrained(run)
    texts = [(f"{word} {other}", word.upper()) for word in ("few", "cat", "saw") for other in ("a", "be", "s", "words")]
    for split in ("train", "validation"):
        encode_corpora(
            [[Pair((source,), target, "here", "") for source, target in texts * 2]],
            translator.tokenizer,
            LengthLimits(50, 50),
            run / "data" / f"{split}.arrow",
        )
    return run


def test_the_notebook_runs_from_top_to_bottom(whole_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with the extra plots")
    monkeypatch.setenv("RUN", str(whole_run))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said, names = [], {"__name__": "__main__"}
    for number, cell in enumerate(code_cells()):
        text = io.StringIO()
        with redirect_stdout(text):
            exec(compile("".join(cell["source"]), f"code cell {number}", "exec"), names)  # noqa: S102 - our own notebook
        said.append(text.getvalue())
    model = Translator.from_pretrained(whole_run).model.state_dict()
    assert all(weights.equal(model[name]) for name, weights in names["model"].state_dict().items())
    assert all(said[number] for number in (0, 1, 3, 4, 5, 6, 7))
    assert "(3, 4, " in said[1]
    assert "decoder layer 2" in said[5]
    assert "dominant direction" in said[6]
    assert "“We suspect that for large values of d_k" in said[7]
    assert "</svg>" in names["Picture"](names["OUTPUT"] / "attention.svg")._repr_svg_()


def test_the_notebook_has_no_outputs() -> None:
    cells = code_cells()
    assert len(cells) == 8
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)

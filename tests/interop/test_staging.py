"""What others could not use is refused by name before anything is sent."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from finished_runs import exported_page, finished_run
from safetensors.torch import load_file, save_file

from hf_vanilla.interop import staging
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.staging import is_ours, staged_page, staged_run


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("template") / "my-run")


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "my-run"))


def refusal(run: Path) -> str:
    with pytest.raises(InteropError) as raised:
        staged_run(run, "user/name")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def with_weights(run: Path, **changes: torch.Tensor | None) -> None:
    weights = load_file(run / "model.safetensors") | {name.replace("__", "."): to for name, to in changes.items()}
    (run / "model.safetensors").unlink()
    save_file({name: to for name, to in weights.items() if to is not None}, run / "model.safetensors")


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "recipe.yaml"]
)
def test_a_run_without_a_file_that_is_needed_is_refused(name: str, run: Path) -> None:
    (run / name).unlink()
    assert f"has no {name}: give the directory of a training that has finished" in refusal(run)


BIAS = "model__encoder__layers__1__feed_forward__fc1__bias"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.zeros(23), "has the shape (23,), and config.json says (24,)"),
        (None, "is missing"),
        (torch.full((24,), float("nan")), "has a value that is no finite number"),
        (torch.tensor([0.0] * 23 + [float("inf")]), "has a value that is no finite number"),
    ],
)
def test_weights_that_the_model_cannot_use_are_refused(value: torch.Tensor | None, said: str, run: Path) -> None:
    with_weights(run, **{BIAS: value})
    line = refusal(run)
    assert f"{BIAS.replace('__', '.')} {said}" in line
    assert "hf-vanilla average" in line


def test_weights_that_are_too_many_are_refused(run: Path) -> None:
    with_weights(run, more=torch.zeros(3))
    assert "more is no weight of this model" in refusal(run)


def test_half_a_file_of_weights_is_refused(run: Path) -> None:
    whole = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "model.safetensors: " in refusal(run)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", "{", "its configuration does not load"),
        ("config.json", '{"model_type": "marian"}', "model_type is 'marian'"),
        ("config.json", '{"model_type": "hf_vanilla", "d_model": 7}', "its configuration does not load: "),
        ("generation_config.json", "{", "its configuration does not load"),
        ("tokenizer.json", "{}", "is no usable tokenizer"),
        ("recipe.yaml", "data: {license: [1]}", "data: license: [1] must be a name"),
        ("recipe.yaml", "{", "recipe.yaml: cannot be read"),
        ("recipe.yaml", "[]", "its model card cannot be written"),
    ],
)
def test_files_that_do_not_load_are_refused(name: str, text: str, said: str, run: Path) -> None:
    (run / name).write_text(text)
    assert said in refusal(run)


def test_a_tokenizer_of_another_run_is_refused(run: Path) -> None:
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["\u4e00"] = len(vocab)
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "is it of this run?" in refusal(run)


def test_a_file_that_is_empty_or_too_large_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "history.json").write_text("")
    assert "history.json" in refusal(run)
    (run / "history.json").write_text("[]")
    monkeypatch.setattr(staging, "MOST_BYTES", 10_000)
    assert "the Hub takes 1 to 10,000" in refusal(run)


@pytest.mark.parametrize("name", ["history.json", "recipe.yaml"])
def test_a_link_that_leads_out_of_the_run_is_refused(name: str, run: Path) -> None:
    (run / name).rename(run.parent / "secret")
    (run / name).symlink_to(run.parent / "secret")
    assert f"{run / name}: is a link out of its directory" in refusal(run)


def test_the_code_and_the_settings_are_of_this_version_whatever_lies_in_the_run(run: Path) -> None:
    """So a run of an earlier version is repaired, and code that somebody put there does not travel."""
    (run / "modeling_vanilla.py").write_text("raise SystemExit('evil')")
    (run / "more_vanilla.py").write_text("raise SystemExit('evil')")
    for name, key in {"config.json": "auto_map", "tokenizer_config.json": "tokenizer_class"}.items():
        settings = json.loads((run / name).read_text())
        settings[key] = {"AutoModel": "more_vanilla.Evil"} if key == "auto_map" else "TokenizersBackend"
        (run / name).write_text(json.dumps(settings | {"is_local": True}))
    files = staged_run(run, "user/name").files
    assert "more_vanilla.py" not in files
    sent = {name: content if isinstance(content, bytes) else content.read_bytes() for name, content in files.items()}
    assert b"evil" not in b"".join(sent.values())
    assert json.loads(sent["config.json"])["auto_map"]["AutoModel"] == "modeling_vanilla.VanillaModel"
    tokenizer = json.loads(sent["tokenizer_config.json"])
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "is_local" not in tokenizer


def test_the_tag_is_made_of_the_contents_and_of_nothing_else(run: Path, tmp_path: Path) -> None:
    first = staged_run(run, "user/name").tag
    os.utime(run / "model.safetensors", (1, 1))
    (run / "notes.txt").write_text("not published")
    elsewhere = Path(shutil.copytree(run, tmp_path / "elsewhere" / "my-run"))
    assert staged_run(elsewhere, "user/name").tag == first
    (elsewhere / "history.json").write_text('[{"step": 2}]')
    assert staged_run(elsewhere, "user/name").tag != first


def test_one_picture_of_attention_is_enough(run: Path) -> None:
    (run / "attention.png").write_bytes(b"png")
    files = staged_run(run, "user/name").files
    assert [name for name in files if name.startswith("attention")] == ["attention.svg"]
    (run / "attention.svg").unlink()
    assert "attention.png" in staged_run(run, "user/name").files


def test_only_our_own_files_are_taken_away() -> None:
    assert all(map(is_ours, ["model-00001-of-00002.safetensors", "old_vanilla.py", "attention.png", "history.json"]))
    assert not any(map(is_ours, [".gitattributes", "onnx/model.safetensors", "notes.txt", "model.onnx", "LICENSE"]))


@pytest.fixture
def page(run: Path, tmp_path: Path) -> Path:
    return exported_page(tmp_path / "page", run)


@pytest.mark.parametrize("name", ["notes.docx", ".env", "model/.git/config", "run.py", "model/weights.pkl"])
def test_what_is_no_part_of_a_page_is_refused(name: str, page: Path, run: Path) -> None:
    (page / name).parent.mkdir(parents=True, exist_ok=True)
    (page / name).write_text("x")
    with pytest.raises(InteropError, match="is no part of a page: take it out"):
        staged_page(page, run, "user/name")


def test_links_in_a_page_are_refused(page: Path, run: Path, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (page / "data").symlink_to(tmp_path / "secrets")
    with pytest.raises(InteropError, match="is a link, which may lead anywhere"):
        staged_page(page, run, "user/name")


def test_a_page_that_was_changed_or_is_of_something_else_is_refused(page: Path, run: Path, tmp_path: Path) -> None:
    (page / "encoder.onnx").write_bytes(b"evil")
    with pytest.raises(InteropError, match=r"encoder\.onnx has another checksum.*export it again"):
        staged_page(page, run, "user/name")
    graphs = exported_page(tmp_path / "graphs", run, format="onnx")
    with pytest.raises(InteropError, match="is an export to 'onnx', not a page"):
        staged_page(graphs, run, "user/name")
    other = exported_page(tmp_path / "other", run, weights={"model.safetensors": "0" * 64})
    with pytest.raises(InteropError, match="was not made from the weights that are in"):
        staged_page(other, run, "user/name")
    (page / "manifest.json").unlink()
    with pytest.raises(InteropError, match=r"manifest\.json is missing"):
        staged_page(page, run, "user/name")


def test_a_page_that_is_none_or_too_large_is_refused(page: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MOST_BYTES_OF_A_PAGE", 100)
    with pytest.raises(InteropError, match="and a Space 100: export int8"):
        staged_page(page, run, "user/name")
    (page / "index.html").unlink()
    with pytest.raises(InteropError, match=r"has no index\.html: make it by `hf-vanilla export"):
        staged_page(page, run, "user/name")


def test_the_card_of_a_space_says_static_and_no_licence_unless_the_model_has_one(page: Path, run: Path) -> None:
    (run / "recipe.yaml").write_text("data: {}\n")
    front = yaml.safe_load(staged_page(page, run, "user/name").card.split("---\n")[1])
    assert (front["title"], front["sdk"], front["models"], "license" in front) == (
        "name",
        "static",
        ["user/name"],
        False,
    )

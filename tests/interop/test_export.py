"""The frame of all exports: a whole folder with a manifest, or one line and nothing."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from transformers import BartConfig, BartForConditionalGeneration

import hf_vanilla_cli
from hf_vanilla.files import sha256_of
from hf_vanilla.inference.languages import Languages, languages_of
from hf_vanilla.interop import export as frame
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.manifest import verify_foreign
from hf_vanilla.version import __version__
from hf_vanilla_cli import exporting


def command(*arguments: object) -> Result:
    return CliRunner().invoke(hf_vanilla_cli.main, ["export", *map(str, arguments)])


@pytest.fixture
def format_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`format_of(function)`: whatever format is asked for, this function writes it."""
    return lambda write: monkeypatch.setattr(frame, "import_module", lambda *_: SimpleNamespace(export=write))


def two_files(run: Path, output: Path, *, quantization: str = "none") -> None:
    (output / "weights").write_bytes(b"weights" * 3)
    (output / "words").write_text(quantization)


def test_the_manifest_says_what_was_made_from_what(run: Path, tmp_path: Path, format_of: Any) -> None:
    format_of(two_files)
    facts = frame.export(run, "onnx", tmp_path / "made", quantization="int8")
    assert facts == verify_foreign(tmp_path / "made") | {"sha256": facts["sha256"]}
    assert facts["format"] == "onnx"
    assert facts["options"] == {"quantization": "int8"}
    assert facts["hf_vanilla"] == __version__
    assert facts["weights"] == {"model.safetensors": sha256_of(run / "model.safetensors")}
    assert facts["generation"]["num_beams"] == 3
    assert facts["columns"] == 1
    assert facts["files"]["weights"]["size"] == 21


def test_an_export_is_served_in_the_languages_of_its_run(run: Path, tmp_path: Path, format_of: Any) -> None:
    format_of(two_files)
    frame.export(run, "onnx", tmp_path / "unknown")
    assert languages_of(tmp_path / "unknown") == Languages("auto", "xx")
    (run / "recipe.yaml").write_text("data: {source_language: en, target_language: de}")
    frame.export(run, "onnx", tmp_path / "known")
    assert languages_of(tmp_path / "known") == Languages("en", "de")
    assert languages_of(tmp_path / "known", target="cs") == Languages("en", "cs")


def test_an_option_of_another_format_is_refused_by_name(run: Path, tmp_path: Path, format_of: Any) -> None:
    format_of(lambda run, output: None)
    result = command(run, "--to", "torch", "--output", tmp_path / "made", "--quantization", "int8")
    assert result.exit_code == 1
    assert result.output == "Error: --quantization is not an option of --to torch\n"
    assert not (tmp_path / "made").exists()


def test_a_refusal_leaves_nothing_behind(run: Path, tmp_path: Path, format_of: Any) -> None:
    def refuse(run: Path, output: Path) -> None:
        (output / "begun").write_text("")
        raise InteropError("num_heads (3) cannot be said there")

    format_of(refuse)
    before = sorted(tmp_path.rglob("*"))
    result = command(run, "--to", "page", "--output", tmp_path / "made")
    assert result.output == "Error: num_heads (3) cannot be said there\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_with_contents_is_not_overwritten(run: Path, tmp_path: Path, format_of: Any) -> None:
    format_of(two_files)
    result = command(run, "--to", "torch", "--output", run)
    assert result.exit_code == 1
    assert "exists and is not empty: choose another --output" in result.output


def test_the_current_directory_is_not_replaced(
    run: Path, tmp_path: Path, format_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    format_of(two_files)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for output in (".", tmp_path / "empty"):
        result = command(run, "--to", "torch", "--output", output)
        assert result.output == (
            f"Error: {output} is the current directory: choose a new --output; nothing was changed\n"
        )
    assert not list(Path().iterdir())


def test_formats_that_write_folders_are_found_out(run: Path, tmp_path: Path, format_of: Any) -> None:
    format_of(lambda run, output: (output / "sub").mkdir())
    with pytest.raises(InteropError, match="an export has no folders in it, and torch made sub"):
        frame.export(run, "torch", tmp_path / "made")


def test_a_missing_extra_is_said_in_one_line(run: Path, tmp_path: Path, format_of: Any) -> None:
    def needs(run: Path, output: Path) -> None:
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

    format_of(needs)
    result = command(run, "--to", "onnx", "--output", tmp_path / "made")
    assert result.output == "Error: --to onnx needs onnxruntime: pip install 'hf_vanilla[export]'\n"


@pytest.mark.parametrize("to", ["ctranslate2", "onnx", "page"])
@pytest.mark.parametrize("settings", [{"no_repeat_ngram_size": 2}, {"bad_words_ids": [[9, 10]]}, {"do_sample": True}])
def test_a_search_that_the_engine_would_refuse_is_refused_when_it_is_exported(
    run: Path, tmp_path: Path, to: str, settings: dict[str, Any]
) -> None:
    file = run / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    result = command(run, "--to", to, "--output", tmp_path / "made")
    assert result.exit_code == 1
    (said,) = result.output.splitlines()
    assert said.startswith(f"Error: {next(iter(settings))} (")
    assert "take that out of the generation_config.json there" in said
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("to", frame.FORMATS)
def test_another_model_is_refused_by_its_type(run: Path, tmp_path: Path, to: str) -> None:
    """Loaded as ours it would have random weights."""
    sizes = {
        f"{stack}_{name}": 2 for stack in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")
    }
    BartForConditionalGeneration(BartConfig(vocab_size=300, d_model=4, **sizes)).save_pretrained(run)
    result = command(run, "--to", to, "--output", tmp_path / "made")
    assert result.exit_code == 1
    assert "config.json: model_type is 'bart', not 'hf_vanilla'" in result.output
    assert len(result.output.splitlines()) == 1
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_run_that_is_not_finished_is_refused_by_the_file_that_is_missing(
    run: Path, tmp_path: Path, name: str
) -> None:
    (run / name).unlink()
    result = command(run, "--to", "ctranslate2", "--output", tmp_path / "made")
    assert result.exit_code == 1
    assert name in result.output
    assert len(result.output.splitlines()) == 1


def test_the_command_has_the_formats_of_the_table(run: Path, tmp_path: Path, format_of: Any) -> None:
    assert tuple(frame.FORMATS) == exporting.FORMATS
    format_of(two_files)
    for name in exporting.FORMATS:
        result = command(run, "--to", name, "--output", tmp_path / name, "--json")
        assert json.loads(result.stdout)["files"] == 2, result.output
        shutil.rmtree(tmp_path / name)

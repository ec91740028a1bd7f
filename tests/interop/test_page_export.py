"""What the folder of a page has in it, and where its engine comes from."""

import hashlib
import json
import os
import re
import tarfile
from base64 import b64encode
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_onnx import MakeModel

from hf_vanilla import hub_name
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference.engine import EngineError
from hf_vanilla.interop import page_engine
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.page_engine import FILES, INTEGRITY, PACKAGE, VERSION, add_engine
from hf_vanilla.interop.to_page import export, write_page
from hf_vanilla.manifest import verify_foreign
from hf_vanilla_cli import main


@pytest.fixture
def run(make_model: MakeModel, tmp_path: Path) -> Path:
    tokenizer = train_tokenizer(["abcd efg"], "character")
    model = make_model(vocab_size=len(tokenizer))
    model.generation_config.update(num_beams=3, max_length=12)
    model.save_pretrained(tmp_path / "my-run")
    tokenizer.save_pretrained(tmp_path / "my-run")
    return tmp_path / "my-run"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with files of the right names, and their checksums in place of the true ones."""
    folder = tmp_path / "package" / "dist"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(f"this is {name}")
        monkeypatch.setitem(FILES, name, hashlib.sha256(f"this is {name}".encode()).hexdigest())
    return tmp_path / "package"


def fake_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")


def test_the_command_writes_a_sealed_folder_that_loads_nothing_from_elsewhere(run: Path, engine: Path) -> None:
    output = run.parent / "page"
    done = CliRunner().invoke(
        main, ["export", str(run), "--to", "page", "--engine", str(engine), "--output", str(output)]
    )
    assert done.exit_code == 0, done.output
    facts = verify_foreign(output, besides=["README.md"])
    assert facts["format"] == "page"
    assert str(engine) not in json.dumps(facts)  # folders of this machine are not published
    page = (output / "index.html").read_text()
    assert "default-src 'none'" in page
    assert "my-run" in page
    assert "sdk: static" in (output / "README.md").read_text()
    linked = re.findall(r'(?:src|href)="([^"]*)"', page)
    imported = [name for file in output.glob("*.mjs") for name in re.findall(r"from '([^']*)'", file.read_text())]
    names = {name.removeprefix("./") for name in [*linked, *imported]} - {"data:,"}
    assert names == {"style.css", *(file.name for file in output.glob("*.mjs"))} - {"ort-wasm-simd-threaded.mjs"}
    assert not re.search(r"https?://(?!localhost)", page + "".join(f.read_text() for f in output.glob("[mpst]*.mjs")))


def test_a_page_of_a_model_on_the_hub_has_the_name_that_was_given(
    run: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the directory in the cache, which is a commit."""
    monkeypatch.setattr(hub_name, "folder_of", lambda name: run)
    output = run.parent / "page"
    done = CliRunner().invoke(
        main, ["export", "user/name", "--to", "page", "--engine", str(engine), "--output", str(output)]
    )
    assert done.exit_code == 0, done.output
    assert "<title>user/name</title>" in (output / "index.html").read_text()


def test_an_engine_with_another_checksum_is_refused(run: Path, engine: Path) -> None:
    (engine / "dist" / "ort.wasm.min.mjs").write_text("this is something else")
    (run.parent / "out").mkdir()
    with pytest.raises(InteropError, match=r"ort\.wasm\.min\.mjs is not that of onnxruntime-web"):
        export(run, run.parent / "out", engine=engine)


def test_a_folder_without_the_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InteropError, match=f"--engine is the folder of {PACKAGE} {VERSION}"):
        add_engine(tmp_path, tmp_path)


def test_without_npm_the_error_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InteropError, match="there is no npm to download it: give --engine FOLDER"):
        add_engine(tmp_path)


def test_what_npm_says_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path / "bin", "echo 'npm error code ENOTFOUND' >&2; exit 1", monkeypatch)
    with pytest.raises(
        InteropError, match=r"could not download onnxruntime-web 1.* \(npm error code ENOTFOUND\): give"
    ):
        add_engine(tmp_path)


def test_another_package_than_the_known_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path / "bin", 'for last; do :; done; echo other > "$last/onnxruntime-web-1.30.0.tgz"', monkeypatch)
    with pytest.raises(InteropError, match="its checksum is another one"):
        add_engine(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_of_the_known_package_only_the_engine_is_taken(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine / "dist" / "more.js").write_text("more")
    archive = tmp_path / "ready.tgz"
    with tarfile.open(archive, "w:gz") as made:
        made.add(engine, "package")
    digest = b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    monkeypatch.setattr(page_engine, "INTEGRITY", f"sha512-{digest}")
    fake_npm(tmp_path / "bin", f'for last; do :; done; cp {archive} "$last/onnxruntime-web-1.30.0.tgz"', monkeypatch)
    (tmp_path / "out").mkdir()
    add_engine(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(FILES)
    assert INTEGRITY.startswith("sha512-")


def test_options_that_the_page_does_not_follow_are_refused_by_name(make_model: MakeModel, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["abcd efg"], "character")
    model = make_model(vocab_size=len(tokenizer))
    model.generation_config.update(no_repeat_ngram_size=3)
    with pytest.raises(EngineError, match=r"no_repeat_ngram_size \(3\)"):
        write_page(model, tokenizer, tmp_path, "title")


def test_without_a_chosen_map_the_picture_is_the_mean_of_the_last_layer(make_model: MakeModel, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["abcd efg"], "character")
    model = make_model(vocab_size=len(tokenizer))
    write_page(model, tokenizer, tmp_path, "title")
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["attention"] == {"layer": 2, "head": None, "row": "output"}


def test_eight_bits_are_a_byte_for_each_weight(make_model: MakeModel, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["abcd efg"], "character")
    model = make_model(vocab_size=len(tokenizer), d_model=128, d_ff=512)
    write_page(model, tokenizer, tmp_path, "title")
    size = sum((tmp_path / name).stat().st_size for name in ("encoder.onnx", "decoder.onnx"))
    twice = model.get_input_embeddings().weight.numel()  # in both graphs
    assert size < 1.1 * (model.num_parameters() + twice)

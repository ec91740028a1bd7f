"""What comes from others is refused in one line; nothing of it runs, and nothing outside of its folder is touched."""

import json
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from inference.conftest import MakeTranslator, make_translator, run
from safetensors.torch import load_file, save_file

from hf_vanilla import Translator
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.interop.export import export
from hf_vanilla.manifest import ManifestError
from hf_vanilla.manifest import manifest_of as seal
from hf_vanilla.memory import peak_memory
from hf_vanilla.training.checkpoints import DamagedCheckpointError, manifest_of, verify
from hf_vanilla.training.recipe import RecipeError, load_recipe
from hf_vanilla.weights import check_model

__all__ = ["MakeTranslator", "make_translator", "run"]

MANY = 10**9


class Mark:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.file,))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def pickled(run: Path, name: str) -> None:
    (run / "model.safetensors").unlink()
    (run / name).write_bytes(pickle.dumps(Mark(run.parent / "executed")))


def pickle_by_its_other_name(run: Path) -> None:
    (run / "model.safetensors").write_bytes(pickle.dumps(Mark(run.parent / "executed")))


def torch_pickle(run: Path) -> None:
    (run / "model.safetensors").unlink()
    torch.save({"weight": Mark(run.parent / "executed")}, run / "pytorch_model.bin")


def header(length: int, text: bytes = b"{}") -> Callable[[Path], None]:
    return lambda run: (run / "model.safetensors").write_bytes(struct.pack("<Q", length) + text) and None


def weight_of(shape: list[int], offsets: list[int]) -> Callable[[Path], None]:
    text = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    return header(len(text), text)


def truncated(run: Path) -> None:
    file = run / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def config(**values: Any) -> Callable[[Path], None]:
    return lambda run: change(run / "config.json", **values)


def text(name: str, said: str) -> Callable[[Path], None]:
    return lambda run: (run / name).write_text(said) and None


def code(file: str, **values: Any) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        (run / "evil.py").write_text(f"open({str(run.parent / 'executed')!r}, 'w')\nEvil = object\n")
        change(run / file, **values)

    return spoil


def sharded(name: str) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        weights = load_file(run / "model.safetensors")
        (run / "model.safetensors").rename(run.parent / "outside.safetensors")
        (run / "sub").mkdir()
        shutil.copy(run.parent / "outside.safetensors", run / "sub" / "inside.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name.format(place=run.parent))}
        (run / "model.safetensors.index.json").write_text(json.dumps(index))

    return spoil


def link(name: str) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        outside = run.parent / f"outside-{name}"
        (run / name).rename(outside)
        (run / name).symlink_to(outside)

    return spoil


def huge(name: str) -> Callable[[Path], None]:
    """Takes no place on the disk."""

    def spoil(run: Path) -> None:
        with (run / name).open("wb") as opened:
            opened.truncate(2**33)

    return spoil


def tokenizer(**model: Any) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        state = json.loads((run / "tokenizer.json").read_text())
        change(run / "tokenizer.json", model=state["model"] | model)

    return spoil


def larger_tokenizer(run: Path) -> None:
    state = json.loads((run / "tokenizer.json").read_text())
    vocab = state["model"]["vocab"]
    vocab["Ω"] = len(vocab)
    change(run / "tokenizer.json", model=state["model"])


def other_weights(run: Path) -> None:
    weights = load_file(run / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"][:, :-1].contiguous()
    save_file(weights, run / "model.safetensors")


def other_file_of_weights(run: Path) -> None:
    shutil.copy(run / "model.safetensors", run / "other.safetensors")
    change(run / "config.json", transformers_weights="other.safetensors")


def adapter(run: Path) -> None:
    (run / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(run)}))


PANICS = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "", "max_input_chars_per_word": 5}
HOSTILE = {
    "a pickle": (lambda run: pickled(run, "pytorch_model.bin"), "not from pickles"),
    "a pickle called .pt": (lambda run: pickled(run, "model.pt"), "not from pickles"),
    "a pickle of torch": (torch_pickle, "not from pickles"),
    "a pickle called safetensors": (pickle_by_its_other_name, "model.safetensors: cannot be read"),
    "a header of 100 GB": (header(100 * MANY), "model.safetensors: cannot be read"),
    "a header of 2^64 bytes": (header(2**64 - 1), "model.safetensors: cannot be read"),
    "a header that is no JSON": (header(4, b"{{{{"), "model.safetensors: cannot be read"),
    "an empty file": (text("model.safetensors", ""), "model.safetensors: cannot be read"),
    "a file cut off": (truncated, "model.safetensors: cannot be read"),
    "weights behind the end": (weight_of([MANY], [0, 4 * MANY]), "model.safetensors: cannot be read"),
    "weights that overflow": (weight_of([2**40, 2**40], [0, 0]), "model.safetensors: cannot be read"),
    "no such weights": (weight_of([0], [0, 0]), "too few for the 5 layers"),
    "a weight of another shape": (other_weights, "lm_head.weight has the shape"),
    "10^9 tokens": (config(vocab_size=MANY), "config.json says (1000000000, 16)"),
    "10^9 dimensions": (config(d_model=MANY), "config.json says"),
    "10^9 layers": (config(encoder_layers=MANY), "too few for the 1,000,000,003 layers"),
    "10^30 dimensions": (config(d_ff=10**30), "no such model can be built"),
    "10^9 heads": (config(num_heads=MANY), "config.json says"),
    "sizes that are texts": (config(d_model="16"), "config.json"),
    "a list for a configuration": (text("config.json", "[]"), "must be a JSON object"),
    "deep JSON": (text("config.json", "[" * 100_000), "config.json: cannot be read"),
    "an enormous number": (text("config.json", "9" * 10_000), "config.json: cannot be read"),
    "enormous JSON": (huge("config.json"), "more than the limit of"),
    "code for another model": (
        code(
            "config.json", model_type="evil", auto_map={"AutoConfig": "evil.Evil", "AutoModelForSeq2SeqLM": "evil.Evil"}
        ),
        "names code that came with it",
    ),
    "code for the tokenizer": (
        code("tokenizer_config.json", auto_map={"AutoTokenizer": [None, "evil.Evil"]}, tokenizer_class="Evil"),
        "names code that came with it",
    ),
    "a shard above": (sharded("../outside.safetensors"), "is not the name of a .safetensors file"),
    "a shard elsewhere": (sharded("{place}/outside.safetensors"), "is not the name of a .safetensors file"),
    "a shard below": (sharded("sub/inside.safetensors"), "is not the name of a .safetensors file"),
    "a shard that is missing": (sharded("none.safetensors"), "is missing"),
    "weights by a link": (link("model.safetensors"), "is a link out of its directory"),
    "a tokenizer by a link": (link("tokenizer.json"), "is a link out of its directory"),
    "a configuration by a link": (link("config.json"), "is a link out of its directory"),
    "weights by another name": (other_file_of_weights, "transformers_weights names another file"),
    "an adapter": (adapter, "merge it first"),
    "a tokenizer with more tokens": (larger_tokenizer, "they do not fit together"),
    "a tokenizer that panics": (tokenizer(**PANICS), "is no usable tokenizer"),
    "a tokenizer of no kind": (tokenizer(type="Evil"), "is no usable tokenizer"),
    "an enormous tokenizer": (huge("tokenizer.json"), "more than the limit of"),
    "a deep tokenizer": (text("tokenizer.json", "[" * 1_000_000), "is no usable tokenizer"),
    "no padding": (lambda run: change(run / "tokenizer_config.json", pad_token=None), "has no pad_token"),
    "10^9 beams": (lambda run: change(run / "generation_config.json", num_beams=MANY), "num_beams: 1000000000 must be"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_model_is_refused_in_one_line_before_memory_is_taken(run: Path, kind: str) -> None:
    spoil, said = HOSTILE[kind]
    spoil(run)
    before, memory = contents(run.parent), peak_memory()
    with pytest.raises(InvalidDataError) as refused:
        Translator.from_pretrained(run)
    message = str(refused.value)
    assert said in message
    assert len(message.splitlines()) == 1
    assert len(message) < 1000
    assert str(run) in message or "no such model can be built" in message
    assert not (run.parent / "executed").exists()
    assert contents(run.parent) == before
    assert peak_memory() - memory < 2**28


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


HOSTILE_EXPORTS = {
    "columns that are no number": ({"columns": "2"}, lambda run: None, "columns: '2' must be a number"),
    "no columns": ({"columns": None}, lambda run: None, "columns: None must be a number"),
    "10^9 beams": ({}, HOSTILE["10^9 beams"][0], "num_beams: 1000000000 must be"),
    "a tokenizer that panics": ({}, HOSTILE["a tokenizer that panics"][0], "is no usable tokenizer"),
    "a tokenizer with more tokens": ({}, larger_tokenizer, "they do not fit together"),
}


@pytest.mark.parametrize("kind", HOSTILE_EXPORTS)
def test_a_hostile_export_is_refused_as_a_model_is(run: Path, tmp_path: Path, kind: str) -> None:
    changes, spoil, said = HOSTILE_EXPORTS[kind]
    folder = tmp_path / "export"
    facts = export(run, "onnx", folder) | changes
    spoil(folder)
    (folder / "manifest.json").unlink()
    of_run = {name: fact for name, fact in facts.items() if name not in ("files", "sha256")}
    (folder / "manifest.json").write_text(seal(folder, of_run))
    with pytest.raises((InvalidDataError, ManifestError)) as refused:
        Translator.from_pretrained(folder)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        ["translate", "RUN"],
        ["score", "RUN"],
        ["serve", "RUN", "--port", "0"],
        ["evaluate", "RUN", "--source", "lines.tsv", "--reference", "lines.tsv"],
        ["train", "recipe.yaml", "--output", "new"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("kind", ["a pickle", "10^9 layers", "a header of 100 GB", "weights by a link"])
def test_every_command_that_reads_a_model_says_so_in_one_line(run: Path, command: list[str], kind: str) -> None:
    spoil, said = HOSTILE[kind]
    spoil(run)
    (run.parent / "lines.tsv").write_text("ab\tcd\n")
    corpus = "{file: lines.tsv, source: 0, target: 1}"
    of_run = f"data: {{train: {corpus}, validation: {corpus}}}\n"
    (run / "recipe.yaml").write_text(of_run)
    (run / "history.json").write_text("[]")
    (run.parent / "recipe.yaml").write_text(f"{of_run}model: {{from: {run}}}\n")
    arguments = [str(run) if each == "RUN" else each for each in command]
    done = warm.run([sys.executable, "-m", "hf_vanilla", *arguments], input="ab\tcd\n", cwd=run.parent)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert said in lines[-1]
    assert lines[-1].startswith("Error: ")
    assert not (run.parent / "executed").exists()


def test_code_beside_a_model_of_ours_and_a_chat_template_are_not_run(run: Path) -> None:
    expected = Translator.from_pretrained(run).translate("ab CD")
    spoil = f"open({str(run.parent / 'executed')!r}, 'w')\n"
    for file in [*run.glob("*.py"), run / "conftest.py", run / "sitecustomize.py"]:
        file.write_text(spoil)
    (run / "custom_generate").mkdir()
    (run / "custom_generate" / "generate.py").write_text(f"{spoil}\ndef generate(*args, **kwargs): return 'evil'\n")
    template = "{{ ''.__class__.__mro__[1].__subclasses__() }}{% for i in range(10**12) %}x{% endfor %}"
    change(run / "tokenizer_config.json", chat_template=template)
    (run / "chat_template.jinja").write_text(template)
    assert Translator.from_pretrained(run).translate("ab CD") == expected
    assert not (run.parent / "executed").exists()


def test_a_cache_of_the_hub_has_links_and_is_read(run: Path, tmp_path: Path) -> None:
    """Its snapshots are links to files beside them; other links out of a snapshot are refused."""
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(run.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    check_model(snapshot)
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").symlink_to(run / "tokenizer.json")
    with pytest.raises(InvalidDataError, match="is a link out of its directory"):
        check_model(snapshot)


def test_shards_that_are_whole_are_read(run: Path) -> None:
    translator = Translator.from_pretrained(run)
    translator.model.save_pretrained(run.parent / "shards", max_shard_size="10KB")
    translator.tokenizer.save_pretrained(run.parent / "shards")
    assert (run.parent / "shards" / "model.safetensors.index.json").exists()
    assert Translator.from_pretrained(run.parent / "shards").translate("ab CD") == translator.translate("ab CD")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(12)
)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (BOMB, "with its aliases it has more than 100,000 values"),
        ("data: &data {train: *data}", "more than 100,000 values|undefined alias|recursive"),
        ("data: " + "[" * 1500, "nested too deeply"),
        ("data: !!python/object/apply:os.system ['touch executed']", "cannot be read"),
        ("data: !!python/name:os.system", "cannot be read"),
        ("model: {d_model: " + "9" * 5000 + "}", "cannot be read"),
    ],
)
def test_a_hostile_recipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(recipe)
    with pytest.raises(RecipeError, match=said):
        load_recipe(tmp_path / "recipe.yaml")
    assert [file.name for file in tmp_path.iterdir()] == ["recipe.yaml"]


def test_an_alias_that_says_little_is_fine(tmp_path: Path) -> None:
    corpus = "{file: a.tsv, source: 0, target: 1}"
    (tmp_path / "recipe.yaml").write_text(f"data: {{train: &it {corpus}, validation: *it}}\n")
    data = load_recipe(tmp_path / "recipe.yaml").data
    assert data.train == data.validation


def test_a_manifest_cannot_name_what_is_outside(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-7"
    checkpoint.mkdir()
    (tmp_path / "secret").write_text("secret")
    (checkpoint / "link").symlink_to(tmp_path / "secret")
    (checkpoint / "manifest.json").write_text(manifest_of(checkpoint, 7))
    with pytest.raises(DamagedCheckpointError, match="names 'link', which is not in"):
        verify(checkpoint)

"""A model is named by a directory or by its name on the Hub, and a revision holds for all of its files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from hf_vanilla import Translator, hub_name
from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.evaluation.card import base_model_of, sentence_of
from hf_vanilla.hub_name import HubName, ModelNameError, folder_of, may_be_on_hub
from hf_vanilla.training.origin import new_origin
from hf_vanilla.training.recipe import load_recipe
from hf_vanilla_cli import main

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture
def models(make_model: Callable[..., Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two commits of `some/model`, with other weights, tokenizers and code, as downloads leave them."""
    repository, folders = tmp_path / "hub" / "models--some--model", {}
    (repository / "refs" / "tries").mkdir(parents=True)
    for commit, refs, texts in ((COMMIT, ["main"], "a few words"), (OTHER, ["v2", "tries/one"], "other letters")):
        tokenizer = train_tokenizer([texts], "character")
        folder = repository / "snapshots" / commit
        make_model(vocab_size=len(tokenizer)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        with (folder / "modeling_vanilla.py").open("a") as code:
            code.write(f"\n\nVanillaForConditionalGeneration.commit = {commit!r}\n")
        for ref in refs:
            (repository / "refs" / ref).write_text(commit)
            folders[ref] = folder
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return folders


@pytest.mark.parametrize(
    ("name", "repository", "revision"),
    [
        ("user/name", "user/name", None),
        ("name", "name", None),
        ("user/name@main", "user/name", "main"),
        ("user/na.me_1-2@v1.0", "user/na.me_1-2", "v1.0"),
        ("user/name@refs/pr/1", "user/name", "refs/pr/1"),
        (f"user/name@{COMMIT}", "user/name", COMMIT),
    ],
)
def test_a_name_is_split_at_its_revision(name: str, repository: str, revision: str | None) -> None:
    assert hub_name.hub_name(name) == HubName(repository, revision)
    assert may_be_on_hub(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "/user/name",
            "../name",
            "./name",
            "user/name/more",
            "user name",
            "-user/name",
            "user/name.git",
            "us\0er/n",
        ),
        *("@v1", "user/name@", "user/name@/v1", "user/name@../../x", "user/name@a..b", "user/name@v1@v2"),
        *("user/name@v 1", "user/name@v1/", "user/name@-v", "user/name@v1\n", "https://huggingface.co/user/name"),
    ],
)
def test_what_no_model_can_be_called_is_refused_in_one_line(name: str) -> None:
    assert not may_be_on_hub(name)
    with pytest.raises(ModelNameError) as error:
        folder_of(name)
    assert len(str(error.value).splitlines()) == 1
    assert repr(name) in str(error.value)


def test_a_directory_of_that_name_wins(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("some/model", "some/model@v2"):
        assert folder_of(name).is_relative_to(tmp_path / "hub")
        Path(name).mkdir(parents=True)
        assert folder_of(name) == Path(name)
    assert folder_of("some/model@main") == models["main"]  # no directory has this name


@pytest.mark.parametrize("revision", ["v2", "tries/one", OTHER])
def test_a_revision_reaches_weights_tokenizer_and_code_alike(models: dict[str, Path], revision: str) -> None:
    first, other = (Translator.from_pretrained(models[ref]) for ref in ("main", "v2"))
    for name, options in ((f"some/model@{revision}", {}), ("some/model", {"revision": revision})):
        found = Translator.from_pretrained(name, **options)
        code = get_class_from_dynamic_module(
            "modeling_vanilla.VanillaForConditionalGeneration", found.model.name_or_path
        )
        assert code.commit == OTHER
        assert found.tokenizer.get_vocab() == other.tokenizer.get_vocab() != first.tokenizer.get_vocab()
        weights = found.model.state_dict()
        assert all(torch.equal(weight, weights[key]) for key, weight in other.model.state_dict().items())
    assert Translator.from_pretrained("some/model").tokenizer.get_vocab() == first.tokenizer.get_vocab()
    with pytest.raises(ModelNameError, match="another revision is given, too"):
        Translator.from_pretrained(f"some/model@{revision}", revision="main")


def test_commands_take_names_of_the_hub(models: dict[str, Path]) -> None:
    for command in (["translate"], ["score", "--json"]):
        text = "a few\tletters" if command[0] == "score" else "a few letters"
        answers = {
            model: CliRunner().invoke(main, [*command, model, "--dtype", "float32"], input=text)
            for model in (str(models["v2"]), "some/model@v2", "some/model")
        }
        assert [done.exit_code for done in answers.values()] == [0, 0, 0]
        there, with_revision, without = (done.stdout for done in answers.values())
        assert there == with_revision != without


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_model_of_the_hub_is_looked_at_as_one_in_a_directory(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("a few\tletters\n")
    for mode in (
        ["a few", "letters", "--arrays", "maps.npz", "--json"],
        ["--heads", "--data", "pairs.tsv", "--json"],
    ):
        answers = [invoke("inspect", model, *mode) for model in (models["v2"], "some/model@v2", "some/model")]
        assert [done.exit_code for done in answers] == [0, 0, 0], answers
        assert answers[0].stdout == answers[1].stdout != answers[2].stdout
    assert invoke("inspect", "some/model@v2", "a few", "--output", "page.html").exit_code == 0
    assert "model@v2" in (tmp_path / "page.html").read_text(encoding="utf-8")
    done = invoke("inspect", "some/model", "--align")
    assert (done.exit_code, "has no data/validation.arrow" in done.stderr, done.stderr.count("\n")) == (1, True, 1)


def test_a_model_of_the_hub_is_exported_as_one_in_a_directory(models: dict[str, Path], tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in ("of_directory", "of_name", "of_main")]
    for model, output in zip((models["v2"], "some/model@v2", "some/model"), outputs, strict=True):
        done = invoke("export", model, "--to", "torch", "--output", output)
        assert done.exit_code == 0, done.output
    there, with_revision, without = ((output / "manifest.json").read_text() for output in outputs)
    assert there == with_revision != without


def test_weights_that_are_not_those_of_their_configuration_are_not_exported(
    models: dict[str, Path], tmp_path: Path
) -> None:
    config = models["main"] / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"d_ff": 10**9}))
    done = invoke("export", "some/model", "--to", "torch", "--output", tmp_path / "exported")
    assert (done.exit_code, "has the shape" in done.stderr, done.stderr.count("\n")) == (1, True, 1)
    assert not (tmp_path / "exported").exists()


def test_a_run_of_the_hub_is_measured_on_files(models: dict[str, Path], tmp_path: Path) -> None:
    source, reference = tmp_path / "test.source", tmp_path / "test.reference"
    source.write_text("a few\nletters\n")
    reference.write_text("words\na\n")
    files = ("--source", source, "--reference", reference, "--json")
    done = invoke("evaluate", "some/model", *files)
    assert (done.exit_code, "recipe.yaml" in done.stderr, done.stderr.count("\n")) == (1, True, 1)
    for folder in models.values():
        (folder / "recipe.yaml").write_text(load_recipe(QUICKSTART).text)
    answers = [invoke("evaluate", model, *files) for model in (models["v2"], "some/model@v2", "some/model")]
    assert [done.exit_code for done in answers] == [0, 0, 0], answers
    there, with_revision, without = (json.loads(done.stdout) for done in answers)
    assert str(models["v2"]) in json.dumps(there)
    assert json.dumps(with_revision) == json.dumps(there).replace(str(models["v2"]), "some/model@v2")
    assert with_revision != without
    for split in ([], ["--split", "validation"]):
        done = invoke("evaluate", "some/model", *split)
        assert done.exit_code == 2
        assert "some/model is not a directory here, where the data of its recipe would be: give --source" in done.stderr


def test_what_cannot_be_downloaded_is_said_in_one_line(models: dict[str, Path]) -> None:
    for name in ("some/model@v3", "some/other", f"some/model@{COMMIT[::-1]}"):
        with pytest.raises(
            ModelNameError, match=f"^'{name}' is no directory here, and could not be downloaded"
        ) as error:
            folder_of(name)
        assert "\n" not in str(error.value)
        for command in (["translate", name], ["serve", name, "--port", "0"]):
            done = CliRunner().invoke(main, command, input="a")
            assert (done.exit_code, done.stderr.startswith(f"Error: {name!r} is no directory here")) == (1, True)


def test_a_training_starts_from_a_revision(models: dict[str, Path], tmp_path: Path) -> None:
    pairs = {"source": "a", "target": "b"}
    (tmp_path / "recipe.yaml").write_text(json.dumps({"data": {"train": pairs, "validation": pairs}}))
    origins = [
        new_origin(load_recipe(tmp_path / "recipe.yaml", [override]))
        for override in ("model.from=some/model", "model.from=some/model@v2", "tokenizer.from=some/model@v2")
    ]
    assert [origin.name for origin in origins] == ["some/model", "some/model@v2", "some/model@v2"]
    before, now, tokenizer = (origin.checksums for origin in origins)
    assert before["weights"] != now["weights"]
    assert before["tokenizer"] != now["tokenizer"] == tokenizer["tokenizer"]
    recorded = {"name": "some/model@v2", "is_on_hub": True, "checksums": now}
    assert base_model_of(recorded) == "some/model"
    assert "(https://huggingface.co/some/model/tree/v2)" in sentence_of(recorded)


def test_only_files_of_the_model_itself_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = {}
    monkeypatch.setattr(hub_name, "snapshot_download", lambda name, **options: asked.update(options) or tmp_path)
    assert folder_of("some/model@v2", token="secret") == tmp_path  # noqa: S106
    files = ["config.json", "model.safetensors", "modeling_vanilla.py", "recipe.yaml", "pytorch_model.bin", "x.pkl"]
    files += ["checkpoint-5/model.safetensors", "onnx/config.json", "README.md"]
    patterns = {key: asked.pop(key) for key in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects(files, **patterns)) == files[:4]
    assert asked == {"revision": "v2", "token": "secret"}

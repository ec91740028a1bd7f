"""A run that is pushed is whole on the Hub, or not there; and it translates as before where this package is not."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from fake_hub import TOKEN, Hub, Repository, running, times
from finished_runs import exported_page, finished_run
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import close_session
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_vanilla.inference.translator import Translator
from hf_vanilla.interop import hub as our_hub
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.hub import push
from hf_vanilla.interop.staging import Staged
from hf_vanilla.manifest import MANIFEST, manifest_of, read_manifest
from hf_vanilla_cli import main

SOURCES = ["a few words", "BAD, CAB.", "x"]

Faults = Callable[..., None]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("template") / "my-run")


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "my-run"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub to which this process talks, in the classic protocol, and without waiting for it."""
    with running() as hub:
        for name, value in {"HF_HUB_OFFLINE": False, "ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": True}.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None)  # which also remembers the Hub before
        monkeypatch.setattr("time.sleep", lambda seconds: hub.waited.append(seconds))
        close_session()  # which has kept what was set before
        yield hub
        close_session()


def published(hub: Hub, kind: str = "models", revision: str = "main") -> dict[str, bytes]:
    return hub.repositories[f"{kind}/user/name"].files(revision)


def api_of(hub: Hub) -> HfApi:
    return HfApi(endpoint=hub.url)


def pushed(run: Path, hub: Hub, **options: object) -> our_hub.Pushed:
    return push(run, "user/name", api=api_of(hub), **options)[0]  # type: ignore[arg-type]


STRANGER = """
import json, sys, warnings
warnings.simplefilter("error")
sys.modules["hf_vanilla"] = None  # importing it now fails, as where it is not installed
exec(sys.argv[1])
print(json.dumps(found))
"""


def as_a_stranger(code: str, hub: Hub, place: Path) -> tuple[object, str]:
    """What code finds, in a clean process without this package, and all that is said there on stderr."""
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(place / "home"), "PATH": os.environ["PATH"]}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, code],
        env=environment,
        cwd=place,
        stdin=subprocess.DEVNULL,  # nobody can answer a question
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_pushed_run_translates_as_before_where_the_package_is_not(run: Path, hub: Hub, tmp_path: Path) -> None:
    """By the code of its own card, without a warning or a question, and by transformers' pipeline."""
    done = pushed(run, hub)
    card = published(hub)["README.md"].decode()
    snippet = card.split("```python\n")[1].split("```")[0]
    assert f'"user/name", revision="{done.tag}"' in snippet
    code = f"""
{snippet}
from transformers import pipeline
from transformers.utils.logging import disable_progress_bar
translate = pipeline("translation", "user/name", revision="{done.tag}", trust_remote_code=True, device="cpu")
texts = {SOURCES}
found = [[tokenizer.decode(model.generate(**tokenizer(text, return_tensors="pt"))[0], skip_special_tokens=True)
          for text in texts], [each["translation_text"] for each in translate(texts, batch_size=2)]]
"""
    found, said = as_a_stranger(code, hub, tmp_path)
    expected = Translator.from_pretrained(run).translate(SOURCES)
    assert found == [expected, expected]
    assert len(set(expected)) == len(SOURCES)
    assert "newer version" not in said
    assert "new version of the following files" not in said
    assert "Traceback" not in said
    assert "warning" not in said.lower(), said


def test_one_commit_has_all_that_others_need_and_nothing_else(run: Path, hub: Hub) -> None:
    done = pushed(run, hub)
    files = published(hub)
    code = {file.name for file in (Path(our_hub.__file__).parents[1] / "models").glob("*_vanilla.py")}
    assert files.keys() - code == {
        *(".gitattributes", "README.md", "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "recipe.yaml", "report.json", "history.json"),
        *("learning_curve.png", "attention.svg"),
    }
    assert code <= files.keys()
    assert hub.requests("POST", "/commit/") == 1
    repository = hub.repositories["models/user/name"]
    assert repository.tags == {done.tag}
    assert repository.refs[done.tag] == repository.refs["main"] == done.commit
    assert files["model.safetensors"] == (run / "model.safetensors").read_bytes()
    assert b"somebody" not in b"".join(files.values())


def test_the_published_card_has_links_scores_languages_licence_and_pictures(run: Path, hub: Hub) -> None:
    pushed(run, hub)
    front, text = published(hub)["README.md"].decode().split("---\n")[1:3]
    data = yaml.safe_load(front)
    assert (data["language"], data["license"]) == (["en", "de"], "cc-by-4.0")
    (metric,) = data["model-index"][0]["results"][0]["metrics"]
    assert (metric["type"], metric["value"]) == ("bleu", 41.5)
    assert metric["args"] == {"signature": "nrefs:1|v:2.6", "confidence_interval_95": [40.9, 41.9]}
    assert "![Learning curve](learning_curve.png)" in text
    assert "![Attention](attention.svg)" in text
    assert 'pipeline("translation", "user/name", revision="contents-' in text


def test_no_licence_is_invented(run: Path, hub: Hub) -> None:
    (run / "recipe.yaml").write_text("data: {}\n")
    pushed(run, hub)
    assert "license" not in yaml.safe_load(published(hub)["README.md"].decode().split("---\n")[1])


def test_pushing_again_sends_nothing(run: Path, hub: Hub) -> None:
    first = pushed(run, hub)
    uploads = hub.requests("PUT", "")
    second = pushed(run, hub)
    assert (second.commit, second.tag, second.is_new) == (first.commit, first.tag, False)
    assert first.is_new
    assert hub.requests("POST", "/commit/") == 1
    assert hub.requests("PUT", "") == uploads == 1


def test_only_what_changed_is_sent_again_and_what_is_gone_goes(run: Path, hub: Hub) -> None:
    first = pushed(run, hub)
    (run / "history.json").write_text('[{"step": 1, "loss": 2.25}]')
    (run / "attention.svg").unlink()
    repository = hub.repositories["models/user/name"]
    repository.files()["somebody's.txt"] = b"a file that somebody else put there"
    repository.files()["model-00001-of-00002.safetensors"] = b"of an earlier version"
    changed = {"README.md", "history.json"}
    kept = {name: data for name, data in published(hub).items() if name not in changed}
    second = pushed(run, hub)
    assert second.tag != first.tag
    del kept["attention.svg"], kept["model-00001-of-00002.safetensors"]
    assert {name: data for name, data in published(hub).items() if name not in changed} == kept
    assert hub.requests("PUT", "") == 1  # the weights are there
    assert repository.refs[first.tag] == first.commit  # and the old state can still be had


def test_a_branch_is_made_and_main_is_left_alone(small: Path, hub: Hub) -> None:
    pushed(small, hub, revision="try/1")
    assert published(hub).keys() == {".gitattributes"}
    assert "model.safetensors" in published(hub, revision="try/1")


def test_private_is_private_and_a_public_repository_does_not_become_it(small: Path, hub: Hub) -> None:
    pushed(small, hub, private=True)
    assert hub.repositories["models/user/name"].private
    hub.repositories["models/user/name"] = Repository(False, None, {"main": "0" * 40}, {"0" * 40: {}})
    with pytest.raises(InteropError, match="is public, and stays it: make it private"):
        pushed(small, hub, private=True)
    assert not published(hub)


def test_another_model_is_not_overwritten(small: Path, hub: Hub) -> None:
    others = {"config.json": b'{"model_type": "marian"}', "model.safetensors": b"0"}
    hub.repositories["models/user/name"] = Repository(False, None, {"main": "0" * 40}, {"0" * 40: others})
    with pytest.raises(InteropError, match="has another model: choose another name"):
        pushed(small, hub)
    with pytest.raises(InteropError, match="has another model: choose another name"):
        pushed(small, hub, revision="new")
    repository = hub.repositories["models/user/name"]
    assert (published(hub), repository.refs) == (others, {"main": "0" * 40})


def test_a_space_that_cannot_be_written_is_found_before_the_model_is_public(
    run: Path, hub: Hub, tmp_path: Path
) -> None:
    hub.repositories["spaces/user/name"] = Repository(False, "gradio", {"main": "0" * 40}, {"0" * 40: {}})
    with pytest.raises(InteropError, match="is a Space with the SDK gradio, not static"):
        push(run, "user/name", page=exported_page(tmp_path / "page", run), api=api_of(hub))
    assert published(hub).keys() == {".gitattributes"}


@pytest.mark.parametrize(("step", "is_unchanged"), [("create", True), ("commit", False), ("tag", False)])
def test_that_no_file_was_changed_is_said_only_where_it_is_so(
    step: str, is_unchanged: bool, small: Path, hub: Hub
) -> None:
    hub.faults = [times(1, STEPS[step], 400)]
    with pytest.raises(InteropError, match="put that right, and push again") as raised:
        pushed(small, hub)
    assert ("changed" in str(raised.value)) is is_unchanged


def test_a_page_becomes_a_static_space_that_names_the_model(run: Path, hub: Hub, tmp_path: Path) -> None:
    page = exported_page(tmp_path / "page", run)
    model, space = push(run, "user/name", page=page, api=api_of(hub))
    assert hub.repositories["spaces/user/name"].sdk == "static"
    files = published(hub, "spaces")
    assert files.keys() - {".gitattributes"} == {"index.html", "encoder.onnx", "manifest.json", "README.md"}
    front = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert (front["sdk"], front["models"], front["license"]) == ("static", ["user/name"], "cc-by-4.0")
    assert "https://huggingface.co/spaces/user/name" in published(hub)["README.md"].decode()
    assert model.url == f"{hub.url}/user/name"
    assert space.url == f"{hub.url}/spaces/user/name"


def test_files_of_the_page_before_go_and_those_of_others_stay(run: Path, hub: Hub, tmp_path: Path) -> None:
    before, page = exported_page(tmp_path / "before", run), exported_page(tmp_path / "page", run)
    facts = read_manifest(before)
    (before / MANIFEST).unlink()
    (before / "old.mjs").write_text("of an earlier version")
    (before / MANIFEST).write_text(manifest_of(before, {name: facts[name] for name in facts.keys() - {"files"}}))
    push(run, "user/name", page=before, api=api_of(hub))
    hub.repositories["spaces/user/name"].files()["somebody's.txt"] = b"a file that somebody else put there"
    assert "old.mjs" in published(hub, "spaces")
    push(run, "user/name", page=page, api=api_of(hub))
    names = {".gitattributes", "README.md", "somebody's.txt", *(file.name for file in page.iterdir())}
    assert published(hub, "spaces").keys() == names
    hub.repositories["spaces/user/name"].files()[MANIFEST] = b'{"files": {"somebody\'s.txt": 1}}'
    push(run, "user/name", page=page, api=api_of(hub))
    assert published(hub, "spaces").keys() == names


# What the client of the Hub itself tries again is left to it; what is lost after the Hub has done it is not done twice.
STEPS = {
    "whoami": "GET /api/whoami",
    "card": "POST /api/validate-yaml",
    "create": "POST /api/repos/create",
    "info": "GET /api/models/user/name$",
    "preupload": "POST /api/models/user/name/preupload/",
    "batch": "objects/batch",
    "upload": "PUT",
    "verify": "large-verify",
    "commit": "/commit/",
    "tag": "/tag/",
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for a run that has been checked: the weights, which are a file, and a card."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights" * 100)
    files = {weights.name: weights, "README.md": b"---\nlicense: mit\n---\n"}
    monkeypatch.setattr(our_hub, "staged_run", lambda *_: Staged(files, "contents-1"))
    return tmp_path


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("what", "after"), [(429, 3), (500, 0), ("short", 1), ("lost", 9)])
def test_what_fails_once_succeeds_in_the_end_and_is_sent_once(
    step: str, what: int | str, after: int, small: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults = [times(1, STEPS[step], what, after)]
    done = pushed(small, hub)
    repository = hub.repositories["models/user/name"]
    assert repository.refs["main"] == repository.refs[done.tag] == done.commit
    assert len(repository.commits) == 2  # the empty one of a new repository, and ours
    assert repository.files()["model.safetensors"] == (small / "model.safetensors").read_bytes()
    assert what != 429 or max(hub.waited) >= 3  # as long as the Hub asks
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("step", sorted(STEPS.keys() - {"verify"}))  # that is not asked for again
@pytest.mark.parametrize(
    ("what", "said"), [(429, "429 (Too Many"), (500, "500 (Internal"), ("short", "is there a net")]
)
def test_what_always_fails_is_one_line_and_the_repository_is_as_it_was(
    step: str, what: int | str, said: str, small: Path, hub: Hub
) -> None:
    hub.faults = [times(10**6, STEPS[step], what)]
    with pytest.raises(InteropError) as raised:
        pushed(small, hub)
    line = str(raised.value)
    assert said in line
    assert "give the same command again" in line
    assert "\n" not in line
    if (repository := hub.repositories.get("models/user/name")) and step != "tag":
        assert repository.files().keys() == {".gitattributes"}
    hub.faults = []
    assert pushed(small, hub).commit == hub.repositories["models/user/name"].refs["contents-1"]  # and it does so
    assert len(hub.repositories["models/user/name"].commits) == 2


def test_a_wrong_token_a_foreign_name_and_no_token_are_named(
    small: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InteropError, match="token may not write other/name: choose a name of your own"):
        push(small, "other/name", api=api_of(hub))
    with pytest.raises(InteropError, match=r"token is not valid.*hf auth login"):
        push(small, "user/name", api=HfApi(endpoint=hub.url, token="hf_wrong"))  # noqa: S106
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(small / "no-such-file"))
    with pytest.raises(InteropError, match="there is no token of the Hub: log in by `hf auth login`"):
        pushed(small, hub)
    assert not hub.repositories
    assert not hub.waited  # none of these passes


def test_without_a_network_one_line_says_so(small: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InteropError, match="is there a network"):
        push(small, "user/name", api=HfApi(endpoint="http://127.0.0.1:9"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    with pytest.raises(InteropError, match="HF_HUB_OFFLINE is set: unset it"):
        pushed(small, hub)


def test_a_licence_that_the_hub_does_not_know_is_refused_before_a_repository_is_made(run: Path, hub: Hub) -> None:
    (run / "recipe.yaml").write_text("data: {license: my own}\n")
    with pytest.raises(InteropError, match=r'the card: the Hub answered 400.*"license" must be one of.*push again'):
        pushed(run, hub)
    assert not hub.repositories


@pytest.mark.parametrize("name", ["name", "user/name/more", "user/a b", "-/-", "user/.."])
def test_a_name_that_cannot_be_is_refused_before_anything_is_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(InteropError, match=r"[Rr]epo|owner"):
        push(tmp_path / "nowhere", name)


def test_a_long_pause_that_the_hub_asks_for_is_left_to_the_user(small: Path, hub: Hub) -> None:
    hub.faults = [times(1, "POST /api/repos/create", 429, 3600)]
    with pytest.raises(InteropError, match="making the repository: the Hub answered 429"):
        pushed(small, hub)
    with contextlib.suppress(KeyError):
        assert not published(hub)


def test_the_models_own_push_sends_the_code_too(run: Path, hub: Hub, tmp_path: Path) -> None:
    translator = Translator.from_pretrained(run)
    translator.model.push_to_hub("user/name")
    files = published(hub)
    assert "pipeline_vanilla.py" in files
    assert "AutoModel" in json.loads(files["config.json"])["auto_map"]


def test_the_command_says_where_the_model_is_and_fails_in_one_line(
    run: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = CliRunner().invoke(main, ["push", str(run), "user/name", "--json"])
    assert found.exit_code == 0, found.output
    (told,) = json.loads(found.stdout)
    assert told["url"] == f"{hub.url}/user/name"
    assert told["tag"] in hub.repositories["models/user/name"].tags
    assert "files, " in found.stderr
    monkeypatch.chdir(run)
    again = CliRunner().invoke(main, ["push", ".", "user/name"])
    assert again.stdout == f"{told['url']} {told['tag']} (nothing had changed)\n"
    wrong = CliRunner().invoke(main, ["push", str(run), "other/name"])
    assert wrong.exit_code == 1
    (line,) = [line for line in wrong.stderr.splitlines() if line.startswith("Error: ")]
    assert "the token may not write other/name" in line
    assert "Traceback" not in wrong.output


def test_a_trainer_that_pushes_at_the_end_pushes_the_code(run: Path, hub: Hub, tmp_path: Path) -> None:
    translator = Translator.from_pretrained(run)
    source = translator.tokenizer(["a few words"], return_tensors="pt")["input_ids"][0]
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=1,
        report_to="none",
        use_cpu=True,
        push_to_hub=True,
        hub_model_id="user/name",
        hub_strategy="end",
        disable_tqdm=True,
    )
    rows = [{"input_ids": source, "attention_mask": torch.ones_like(source), "labels": source}] * 2
    model = translator.model
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=rows, processing_class=translator.tokenizer)
    trainer.train()
    trainer.push_to_hub()
    assert {"modeling_vanilla.py", "pipeline_vanilla.py", "model.safetensors"} <= published(hub).keys()

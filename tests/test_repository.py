"""What the README and the documents say is true, and the command line answers."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import warm

import hf_vanilla
from hf_vanilla.training import shipped
from hf_vanilla.training.options import DEFAULT_ARGUMENTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def run(*arguments: str, cwd: Path = ROOT, fresh: bool = False) -> str:
    """What Python prints; `fresh` is an interpreter that has imported nothing."""
    if fresh:
        options = {"capture_output": True, "text": True, "timeout": 300, "check": False}
        done = subprocess.run([sys.executable, *arguments], cwd=cwd, **options)
    else:
        done = warm.run([sys.executable, *arguments], cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_of_the_readme_builds_trains_and_saves_a_model(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (block,) = (block for block in blocks if "generate(" in block)
    assert "tensor([[" in run("-c", block, cwd=tmp_path)
    assert (tmp_path / "my-model" / "modeling_vanilla.py").exists()


def test_the_trainer_of_the_readme_trains(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (block,) = (block for block in blocks if "Seq2SeqTrainer(" in block)
    assert "'train_loss'" in run("-c", block, cwd=tmp_path)


def test_every_make_target_of_the_readme_exists() -> None:
    named = set(re.findall(r"\bmake ([a-z-]+)\b", README))
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert phony is not None
    assert {"demo", "test", "lint"} <= named <= set(phony.group(1).split())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_heading_and_class_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text()
    for path, heading in re.findall(r"\]\(((?!http)[^)#]*)#?([^)]*)\)", text):
        named = document.parent / path if path else document
        assert named.exists(), path
        headings = re.findall(r"^#+ (.*)$", named.read_text(), flags=re.MULTILINE) if heading else []
        assert heading in ["", *(re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings)], heading
    code = "".join(path.read_text() for path in (ROOT / "hf_vanilla").rglob("*.py"))
    for name in re.findall(r"`(Vanilla\w+)", text):
        assert f"class {name}" in code, name


def test_every_default_of_training_that_differs_from_transformers_is_in_its_table() -> None:
    table = (ROOT / "docs" / "training.md").read_text()
    technical = ("logging_nan_inf_filter", "disable_tqdm", "remove_unused_columns", "restore_", "ddp_find_unused")
    for name in [*DEFAULT_ARGUMENTS, "bf16", "max_tokens", "average_checkpoints"]:
        assert f"`{name}`" in table or name.startswith(technical), name


@pytest.mark.parametrize("command", [["-m", "hf_vanilla"], ["-c", "from hf_vanilla_cli import main; main()"]])
def test_env_prints_versions_as_text_and_as_json(command: list[str]) -> None:
    text = run(*command, "env")
    facts = json.loads(run(*command, "env", "--json"))
    assert facts["hf_vanilla"] == hf_vanilla.__version__
    assert text.splitlines() == [f"{name}: {fact}" for name, fact in facts.items()]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["train", "--help"], ["benchmark", "training", "--help"]]
)
def test_help_does_not_wait_for_pytorch(arguments: list[str]) -> None:
    code = (
        "import sys, hf_vanilla_cli; hf_vanilla_cli.main(sys.argv[1:], standalone_mode=False);"
        "print([m for m in ('hf_vanilla', 'torch', 'transformers') if m in sys.modules])"
    )
    assert run("-c", code, *arguments, fresh=True).splitlines()[-1] == "[]"


def test_importing_the_package_imports_nothing_heavy_but_torch_and_transformers() -> None:
    code = (
        "import sys, hf_vanilla; print([m for m in ('datasets', 'matplotlib', 'click', 'pandas') if m in sys.modules])"
    )
    assert run("-c", code, fresh=True).strip() == "[]"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which a wheel of this repository was installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site-packages")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("hf_vanilla", "hf_vanilla_cli", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run("-c", build, str(source), cwd=source, fresh=True)
    (wheel,) = source.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(target)
    return target


def test_the_wheel_has_every_module_recipe_preset_and_launcher_file(installed: Path) -> None:
    here = {path.relative_to(ROOT) for name in ("hf_vanilla", "hf_vanilla_cli") for path in (ROOT / name).rglob("*.*")}
    here = {path.as_posix() for path in here if path.suffix != ".pyc"}
    here |= {f"hf_vanilla/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "configs").rglob("*.*")}
    there = {path.relative_to(installed).as_posix() for path in installed.rglob("*.*") if path.is_file()}
    assert here == {path for path in there if ".dist-info/" not in path}


def test_names_are_found_in_what_was_installed(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = {name: shipped.named(name).read_text() for name in ("quickstart", "models/tiny", "accelerate/ddp")}
    known = shipped.names()
    monkeypatch.setattr(shipped, "__file__", str(installed / "hf_vanilla" / "training" / "shipped.py"))
    assert shipped.names() == known
    for name, text in checkout.items():
        assert shipped.named(name).is_relative_to(installed)
        assert shipped.named(name).read_text() == text

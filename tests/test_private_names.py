"""Private names of other packages may be renamed at any time: each is in a table and missed if it is gone."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import Trainer

from hf_vanilla import private_names
from hf_vanilla.private_names import (
    HOOKS,
    PRIVATE_NAMES,
    MissingNameError,
    PrivateName,
    is_there,
    require_private_names,
)

PACKAGE = Path(private_names.__file__).parent
FILES = [file for file in PACKAGE.rglob("*.py") if file.name not in ("__main__.py", "private_names.py")]
PRIVATE = re.compile(r"_[a-z]\w*")


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def overridden(file: Path) -> set[str]:
    """Private names in the bodies of our classes that a class of another package has, too."""
    module, found = importlib.import_module(module_of(file)), set()
    for node in ast.walk(ast.parse(file.read_text())):
        ours = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
        if isinstance(ours, type):
            others = [base for base in ours.__mro__ if not base.__module__.startswith("hf_vanilla")]
            names = {name for name in defined(node) if PRIVATE.fullmatch(name)}
            found |= {name for name in names if any(name in vars(base) for base in others)}
    return found


def defined(tree: ast.AST) -> set[str]:
    """Names of functions and classes, and of what is assigned to, also of `self`."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return names


def mentioned(tree: ast.AST) -> Iterator[str]:
    """Attributes, parts of imports, and strings, as `getattr` and `vars` take them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for part in node.values:
                part.value = "" if isinstance(part, ast.Constant) else part.value  # the end of a longer name
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (*(node.module or "").split("."), *(alias.name for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def private_names_in(file: Path) -> set[str]:
    """Those of other packages."""
    tree, foreign = ast.parse(file.read_text()), overridden(file)
    return foreign | {name for name in mentioned(tree) if PRIVATE.fullmatch(name)} - (defined(tree) - foreign)


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_every_private_name_of_another_package_is_in_the_table(file: Path) -> None:
    listed = {entry.name for entry in PRIVATE_NAMES if entry.user == module_of(file)}
    assert private_names_in(file) - HOOKS.keys() == listed


def test_every_module_of_the_table_is_there() -> None:
    assert {entry.user for entry in PRIVATE_NAMES} <= {module_of(file) for file in FILES}


def test_modules_ask_for_their_private_names_when_they_are_imported() -> None:
    for user in {entry.user for entry in PRIVATE_NAMES if ".models." not in entry.user}:
        assert "\nrequire_private_names(__name__)\n" in Path(importlib.import_module(user).__file__).read_text()


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_files_that_travel_alone_override_hooks_only(file: Path) -> None:
    """An override of a name that is gone is silently never called, and there is no table to ask on the Hub."""
    assert file.parent.name != "models" or overridden(file) <= HOOKS.keys()


SAMPLE = """
from transformers import Trainer
from transformers._secret import thing

class Ours(Trainer):
    _own = 1
    def _save(self): self._mine = self._own + self._mine
    def _helper(self, other): return self._helper(other._theirs) + getattr(other, "_named") + f"{other}_loss"
"""


def test_private_names_are_found_however_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sample.py"
    file.write_text(SAMPLE)
    monkeypatch.setitem(sys.modules, "sample", SimpleNamespace(Ours=type("Ours", (Trainer,), {})))
    monkeypatch.setitem(globals(), "module_of", lambda _: "sample")
    assert private_names_in(file) == {"_secret", "_save", "_theirs", "_named"}


def test_a_name_that_is_gone_is_named_with_what_would_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Trainer, "_run_epoch")
    message = (
        rf"transformers {version('transformers')} has no transformers\.Trainer\._run_epoch, and without it a training "
        "that goes on would take other steps, or one too many: install the versions that hf_vanilla was tested with"
    )
    with pytest.raises(MissingNameError, match=message):
        importlib.reload(importlib.import_module("hf_vanilla.training.trainer"))
    require_private_names("hf_vanilla.benchmark.peak")  # which has another owner


def test_an_owner_that_is_gone_is_missing_too() -> None:
    assert not is_there(PrivateName("user", "torch:no.such.thing", "_name", ""))
    assert not is_there(PrivateName("user", "torch.no_such_module:Thing", "_name", ""))

"""What is in a run directory has its name in one place."""

import re
from pathlib import Path

import hf_vanilla
from hf_vanilla import run_directory

PACKAGE = Path(hf_vanilla.__file__).parent


def test_no_other_module_writes_a_name_of_the_run_directory() -> None:
    names = [value for key, value in vars(run_directory).items() if key.isupper() and isinstance(value, str)]
    assert {"recipe.yaml", "report.json", "model.safetensors", "checkpoint-"} <= set(names)
    names.remove("data")  # also a section of a recipe
    literal = re.compile("|".join(rf'f?"{re.escape(name)}' for name in names))
    found = {file.name: literal.findall(file.read_text()) for file in PACKAGE.rglob("*.py")}
    assert [name for name, literals in found.items() if literals] == ["run_directory.py"]

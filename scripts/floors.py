"""
The lowest versions that pyproject.toml allows, as constraints for pip: `make test-floors` runs the tests with them.

Of what is not needed by the tests themselves (linters, type stubs) any version will do. PyTorch stays the one of
constraints.txt: most indexes have older versions with CUDA only, which is gigabytes.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("benchmark", "plots", "dev")
NOT_TESTED = ("import-linter", "mypy", "parameterized", "pre-commit", "ruff", "torch", "types-PyYAML")


def floors() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(line for extra in EXTRAS for line in project["optional-dependencies"][extra]),
    ]
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)(,<\d+)?", requirement) for requirement in requirements]
    return [f"{match[1]}=={match[2]}" for match in found if match and match[1] not in NOT_TESTED]


if __name__ == "__main__":
    sys.stdout.write("\n".join([*floors(), (ROOT / "constraints.txt").read_text()]))

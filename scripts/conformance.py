"""
Runs the common tests that transformers runs on each of its own models on this one: `make conformance`.

They come with the source distribution of the installed version of transformers, which pip fetches. Two of the mixins
that they inherit from are not in it and are left empty: generation (tests/models/test_generation.py has its points)
and exporters (tests/models/test_compile_and_export.py).
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

OURS = Path(__file__).parents[1] / "tests" / "conformance" / "conformance_vanilla.py"
NOT_DISTRIBUTED = {
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    # Fields of any configuration, with values that are not their defaults.
    "utils/test_configuration_utils.py": (
        'config_common_kwargs = {"return_dict": False, "output_hidden_states": True, "dtype": "float16", '
        '"architectures": ["Another"], "id2label": {0: "label"}, "label2id": {"label": 0}}\n'
    ),
}


def fetch_tests(folder: Path) -> None:
    """Put the tests of the installed transformers into `folder`/tests, and ours among those of its models."""
    version = metadata.version("transformers")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "transformers"]
    subprocess.run([*pip, "--dest", str(folder), f"transformers=={version}"], check=True)  # noqa: S603
    with tarfile.open(folder / f"transformers-{version}.tar.gz") as archive:
        prefix = f"transformers-{version}/"
        members = [member for member in archive.getmembers() if member.name.startswith(f"{prefix}tests/")]
        for member in members:
            member.name = member.name.removeprefix(prefix)
        archive.extractall(folder, members, filter="data")
    ours = {"models/hf_vanilla/test_modeling_vanilla.py": OURS.read_text()}
    for name, text in (NOT_DISTRIBUTED | ours).items():
        file = folder / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for path in [folder / "tests", *(folder / "tests").rglob("*/")]:
        (path / "__init__.py").touch()


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fetch_tests(folder)
        (folder / "pytest.ini").write_text("[pytest]\n")
        run = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-W", "ignore"]
        sys.exit(subprocess.run([*run, "tests/models/hf_vanilla", *sys.argv[1:]], cwd=folder, check=False).returncode)  # noqa: S603


if __name__ == "__main__":
    main()

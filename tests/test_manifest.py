"""A folder is read only if it is what its manifest says, and a foreign one only if nothing leads out of it."""

import json
from pathlib import Path

import pytest

from hf_vanilla import manifest
from hf_vanilla.manifest import MANIFEST, ManifestError, manifest_of, verify, verify_foreign


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    (made / "weights").write_bytes(bytes(range(7)))
    (made / "words").write_text("ein paar Wörter")
    (made / MANIFEST).write_text(manifest_of(made, {"format": "some"}))
    return made


def sealed(folder: Path, files: object) -> None:
    """Write a manifest with these entries and the right checksum, as whoever wants to harm can."""
    (folder / MANIFEST).write_text(manifest._with_checksum({"files": files}))


def entry_of(file: Path) -> dict[str, object]:
    return {"size": file.stat().st_size, "sha256": manifest.sha256_of(file)}


def test_what_was_written_is_read(folder: Path) -> None:
    assert verify(folder) == verify_foreign(folder)
    assert verify(folder)["format"] == "some"
    assert set(verify(folder)["files"]) == {"weights", "words"}


def test_every_flipped_bit_is_found(folder: Path) -> None:
    for file in folder.iterdir():
        whole = file.read_bytes()
        for place in range(len(whole)):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(ManifestError):
                verify(folder)
        file.write_bytes(whole)
    verify(folder)


def test_files_that_are_missing_cut_or_longer_are_named(folder: Path) -> None:
    file = folder / "weights"
    for change, message in (
        (lambda: file.write_bytes(b"abc"), "has 3 bytes instead of 7"),
        (lambda: file.write_bytes(bytes(range(8))), "has 8 bytes instead of 7"),
        (file.unlink, "weights is missing"),
        ((folder / MANIFEST).unlink, "manifest.json is missing"),
    ):
        change()
        with pytest.raises(ManifestError, match=message):
            verify(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/weights", "..\\secret"])
def test_names_that_lead_elsewhere_are_refused_before_anything_is_read(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("secret")
    sealed(folder, {name: entry_of(folder / "weights")})
    with pytest.raises(ManifestError, match="not a file of the folder itself"):
        verify_foreign(folder)


@pytest.mark.parametrize("name", ["weights", MANIFEST])
def test_symbolic_links_are_refused(folder: Path, name: str) -> None:
    (folder / name).rename(folder.parent / "elsewhere")
    (folder / name).symlink_to(folder.parent / "elsewhere")
    with pytest.raises(ManifestError, match=f"{name} is a symbolic link"):
        verify_foreign(folder)


def test_files_that_the_manifest_does_not_name_are_refused(folder: Path) -> None:
    (folder / "README.md").write_text("of the Hub")
    (folder / ".gitattributes").write_text("of the Hub")
    verify_foreign(folder, besides=["README.md"])
    with pytest.raises(ManifestError, match=r"README\.md is not named"):
        verify_foreign(folder)
    (folder / "README.md").unlink()
    (folder / "shared_vocabulary.txt").write_text("of somebody else")
    with pytest.raises(ManifestError, match=r"shared_vocabulary\.txt is not named"):
        verify_foreign(folder)


@pytest.mark.parametrize(
    "files", [None, 3, ["weights"], {"weights": None}, {"weights": {"size": "7", "sha256": "0"}}, {"weights": {}}]
)
def test_entries_of_another_form_are_an_error_in_one_line(folder: Path, files: object) -> None:
    sealed(folder, files)
    with pytest.raises(ManifestError, match=r"manifest\.json is not what was saved: [^\n]+$"):
        verify_foreign(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", "[" * 100_000, json.dumps({"files": {}, "sha256": "0"}), "\0"]
)
def test_other_texts_are_an_error_in_one_line(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(ManifestError, match=r"manifest\.json (is not what was saved|has another checksum)[^\n]*$"):
        verify_foreign(folder)

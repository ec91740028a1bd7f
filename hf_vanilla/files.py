"""How files are written."""

from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Under another name first: whoever reads `file` finds all of it, or what was there before."""
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)

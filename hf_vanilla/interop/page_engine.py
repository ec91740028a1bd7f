"""The engine of the page: three files of the npm package onnxruntime-web, known by their checksums."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from ..files import sha256_of
from .errors import InteropError

PACKAGE = "onnxruntime-web"
VERSION = "1.30.0"
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
FILES = {
    "ort.wasm.min.mjs": "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b",
    "ort-wasm-simd-threaded.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
SECONDS = 300  # for a download of 33 MB


def add_engine(output: Path, folder: Path | None = None) -> None:
    """
    Copy the engine into `output`.

    Args:
        folder: Where the files of the package are. If not given, npm downloads it from the registry that it is set to.
    """
    if folder is not None:
        copy_files(folder, output)
        return
    with tempfile.TemporaryDirectory() as temporary:
        unpack(download(Path(temporary)), Path(temporary))
        copy_files(Path(temporary), output)


def copy_files(folder: Path, output: Path) -> None:
    """From the folder, or from the folder `dist` in it."""
    for name, checksum in FILES.items():
        file = next((place for place in (folder / name, folder / "dist" / name) if place.is_file()), None)
        if file is None:
            raise InteropError(f"{folder / name} is missing: --engine is the folder of {PACKAGE} {VERSION}")
        if sha256_of(file) != checksum:
            raise InteropError(f"{file} is not that of {PACKAGE} {VERSION}: its checksum is another one")
        shutil.copyfile(file, output / name)


def download(folder: Path) -> Path:
    """The archive of the package."""
    npm = shutil.which("npm")
    advice = f"give --engine FOLDER with the package {PACKAGE} {VERSION} unpacked"
    if npm is None:
        raise InteropError(f"the page needs {PACKAGE} {VERSION}, and there is no npm to download it: {advice}")
    command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--ignore-scripts", "--silent", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise InteropError(f"npm did not download {PACKAGE} {VERSION} in {SECONDS} seconds: {advice}") from None
    archive = folder / f"{PACKAGE}-{VERSION}.tgz"
    if done.returncode or not archive.is_file():
        said = next((line for line in done.stderr.splitlines() if "code" in line), "").strip()
        raise InteropError(f"npm could not download {PACKAGE} {VERSION} ({said or 'without a reason'}): {advice}")
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """The files that the page needs, and nothing else, if the archive is the one that is known."""
    content = archive.read_bytes()
    found = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != INTEGRITY:
        raise InteropError(f"what npm downloaded is not {PACKAGE} {VERSION}: its checksum is another one")
    with tarfile.open(archive) as opened:
        for name in FILES:
            member = opened.extractfile(f"package/dist/{name}")
            if member is None:
                raise InteropError(f"{archive.name} has no dist/{name}")
            (folder / name).write_bytes(member.read())

"""
A run directory to what is sent to the Hub.

Only files on a list are sent, of what others can use: not the text of the training, no checkpoints, locks or pickles.
Configuration, tokenizer and code are written anew by this version, so that they load wherever transformers is; no code
of the run directory is sent. All of it is checked before anything is sent.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from huggingface_hub import ModelCard
from safetensors import safe_open
from transformers import GenerationConfig

from .. import VanillaConfig
from ..data.errors import InvalidDataError
from ..data.existing_tokenizer import load_tokenizer
from ..data.saved_tokenizer import PreTrainedTokenizerFast
from ..evaluation.card import Published, card_of, pictures_of, without_places
from ..evaluation.measurements import weights_of
from ..files import sha256_of
from ..manifest import ManifestError, verify_foreign
from ..run_directory import (
    ATTENTION,
    CARD,
    CURVE,
    GENERATION_CONFIG,
    HISTORY,
    RECIPE,
    REPORT,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
)
from ..weights import CONFIG, mistakes_of_shapes, refuse_links_that_leave, shapes_of
from .errors import InteropError

AS_THEY_ARE = (GENERATION_CONFIG, WEIGHTS, REPORT, HISTORY)
CODE = "*_vanilla.py"
NEEDED = (CONFIG, GENERATION_CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG, RECIPE)
MOST_BYTES = 50_000_000_000  # of one file, which the Hub takes

PAGE_SUFFIXES = frozenset(
    (
        *(".css", ".html", ".ico", ".js", ".json", ".mjs", ".onnx", ".png", ".svg", ".txt", ".wasm", ".webmanifest"),
        *(".bin", ".md", ".woff2"),
    )
)
MOST_BYTES_OF_A_PAGE = 1_000_000_000  # of a free Space


@dataclass(frozen=True)
class Staged:
    """
    Files to send, by their names in the repository: a file of this machine, or what is in it.

    Args:
        tag: A name made of the contents.
    """

    files: Mapping[str, Path | bytes]
    tag: str

    @property
    def size(self) -> int:
        return sum(size_of(content) for content in self.files.values())

    @property
    def card(self) -> str:
        content = self.files[CARD]
        return content.decode() if isinstance(content, bytes) else content.read_text(encoding="utf-8")


def is_ours(name: str) -> bool:
    """Whether a file of a repository is one that `staged_run` may send: such a file goes when it is not sent again."""
    path = Path(name)
    is_picture = name in (CURVE, *ATTENTION)
    is_weights = path.match("model*.safetensors") or name == f"{WEIGHTS}.index.json"
    return "/" not in name and (name in (*NEEDED, *AS_THEY_ARE, CARD) or path.match(CODE) or is_picture or is_weights)


def staged_run(run: Path, name: str, space: str | None = None) -> Staged:
    """What is published of a run as `name`. Raises an `InteropError` if others could not use it."""
    for needed in NEEDED:
        if not (run / needed).is_file():
            raise InteropError(f"{run} has no {needed}: give the directory of a training that has finished")
    try:
        refuse_links_that_leave(run)
    except InvalidDataError as error:
        raise InteropError(str(error)) from None
    config = checked_config(run)
    check_weights(run, config)
    tokenizer = checked_tokenizer(run, config)
    as_they_are = (*AS_THEY_ARE, *pictures_of(run).values())
    found: dict[str, Path | bytes] = {file: run / file for file in as_they_are if (run / file).is_file()}
    found |= {CONFIG: config.to_json_string().encode(), RECIPE: public_recipe(run), **tokenizer, **code()}
    for file, content in found.items():
        check_file(run, file, content)
    unpinned = card_text(run, Published(name, "", space)).encode()
    tag = tag_of(found | {CARD: unpinned})
    return Staged(found | {CARD: card_text(run, Published(name, tag, space)).encode()}, tag)


def staged_page(folder: Path, run: Path, name: str) -> Staged:
    """What is published of the exported page of a run as the static Space `name`, on which the model can be tried."""
    if not (folder / "index.html").is_file():
        raise InteropError(f"{folder} has no index.html: make it by `hf-vanilla export RUN --to page --output FOLDER`")
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    for path in paths:
        check_part_of_page(folder, path)
    check_page(folder, run)
    found: dict[str, Path | bytes] = {path.relative_to(folder).as_posix(): path for path in paths}
    found[CARD] = space_card(name, license_of(run)).encode()
    staged = Staged(found, tag_of(found))
    if staged.size > MOST_BYTES_OF_A_PAGE:
        raise InteropError(f"{folder} has {staged.size:,} bytes, and a Space {MOST_BYTES_OF_A_PAGE:,}: export int8")
    return staged


def check_page(folder: Path, run: Path) -> None:
    """It is as it was exported, and from the weights of the run."""
    again = f"export it again by `hf-vanilla export {run} --to page`, to a new folder"
    try:
        facts = verify_foreign(folder, besides=[CARD])
    except ManifestError as error:
        raise InteropError(f"{error}: {again}") from None
    if facts.get("format") != "page":
        raise InteropError(f"{folder} is an export to {facts.get('format')!r:.40}, not a page: {again}")
    if facts.get("weights") != {WEIGHTS: weights_of(run)}:
        raise InteropError(f"{folder} was not made from the weights that are in {run} now: {again}")


def check_part_of_page(folder: Path, path: Path) -> None:
    name = path.relative_to(folder)
    if path.is_symlink():
        raise InteropError(f"{path} is a link, which may lead anywhere: put the file in its place, or export again")
    if any(part.startswith(".") for part in name.parts) or path.suffix not in PAGE_SUFFIXES:
        raise InteropError(f"{path} is no part of a page: take it out of {folder}, or export again to a new folder")
    check_file(folder, str(name), path)


def space_card(name: str, license_of_model: str | None) -> str:
    title = name.partition("/")[2]
    facts = {"title": title, "sdk": "static", "app_file": "index.html", "pinned": False, "models": [name]}
    if license_of_model:
        facts["license"] = license_of_model
    front = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
    text = f"Runs [{name}](https://huggingface.co/{name}) in the browser: nothing that is typed leaves it."
    return f"---\n{front}---\n\n# {title}\n\n{text}\n"


def license_of(run: Path) -> str | None:
    """What the recipe says, and nothing if it says nothing."""
    found = yaml.safe_load((run / RECIPE).read_text(encoding="utf-8"))["data"].get("license")
    return None if found is None else str(found)


def checked_config(run: Path) -> VanillaConfig:
    """The configuration as this version writes it: with the code that is sent, and nothing of where it came from."""
    file = run / CONFIG
    try:
        kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
        if kind != VanillaConfig.model_type:
            raise InteropError(
                f"{file}: model_type is {kind!r}, not {VanillaConfig.model_type!r}: this is another model"
            )
        config: VanillaConfig = VanillaConfig.from_pretrained(run)
        GenerationConfig.from_pretrained(run)
    except InteropError:
        raise
    except Exception as error:  # transformers and its validators raise errors of many kinds
        raise InteropError(
            f"{run}: its configuration does not load: {one_line(error)}; average or train again"
        ) from None
    return config


def check_weights(run: Path, config: VanillaConfig) -> None:
    """The names and sizes that the configuration asks for, and only numbers."""
    file = run / WEIGHTS
    again = "it is damaged, or not of this run: write it again by `hf-vanilla average`"
    try:
        for mistake in mistakes_of_shapes(shapes_of(run), config):
            raise InteropError(f"{file}: {mistake}: {again}")
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                if not weights.get_tensor(name).isfinite().all():
                    raise InteropError(f"{file}: {name} has a value that is no finite number: {again}")
    except InvalidDataError as error:
        raise InteropError(f"{error}: {again}") from None


def checked_tokenizer(run: Path, config: VanillaConfig) -> dict[str, bytes]:
    """The files of the tokenizer as this version writes them, which is how transformers 4 reads them, too."""
    try:
        load_tokenizer(run)  # refuses files that crash, in a process of its own
    except InvalidDataError as error:
        raise InteropError(str(error)) from None
    tokenizer = PreTrainedTokenizerFast.from_pretrained(run, local_files_only=True)
    if len(tokenizer) > config.vocab_size:
        raise InteropError(
            f"{run / TOKENIZER}: has {len(tokenizer):,} tokens, and the model {config.vocab_size:,}: is it of this run?"
        )
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {name: (Path(folder) / name).read_bytes() for name in (TOKENIZER, TOKENIZER_CONFIG)}


def code() -> dict[str, bytes]:
    """The files of `hf_vanilla.models`, by which the model loads where this package is not installed."""
    found = (file for file in files("hf_vanilla.models").iterdir() if Path(file.name).match(CODE))
    return {file.name: file.read_bytes() for file in sorted(found, key=lambda file: file.name)}


def public_recipe(run: Path) -> bytes:
    try:
        return without_places((run / RECIPE).read_text(encoding="utf-8")).encode()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InteropError(f"{run / RECIPE}: cannot be read: {one_line(error)}: bring it back") from None


def card_text(run: Path, published: Published) -> str:
    """The card; its front matter must be what the Hub can read."""
    try:
        text = str(card_of(run, published))
        front = yaml.safe_load(text.split("---\n", 2)[1])
        ModelCard(text)
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InteropError(f"{run}: its model card cannot be written: {one_line(error)}; check {RECIPE}") from None
    for key, kinds in {"license": str, "language": list}.items():
        values = front.get(key, [])
        if not isinstance(values, kinds) and values != []:
            raise InteropError(f"{run / RECIPE}: data: {key}: {values!r} must be a name, as the Hub has it")
    return text


def check_file(folder: Path, name: str, content: Path | bytes) -> None:
    if isinstance(content, Path) and content.is_symlink() and not content.resolve().is_relative_to(folder.resolve()):
        raise InteropError(f"{content} is a link that leads out of {folder}: put the file itself there")
    size = size_of(content)
    if not 0 < size <= MOST_BYTES:
        raise InteropError(f"{folder / name}: has {size:,} bytes, and the Hub takes 1 to {MOST_BYTES:,}")


def size_of(content: Path | bytes) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def tag_of(contents: Mapping[str, Path | bytes]) -> str:
    """The same for the same contents, and another for others."""
    total = sha256()
    for name, content in sorted(contents.items()):
        found = sha256_of(content) if isinstance(content, Path) else sha256(content).hexdigest()
        total.update(f"{found} {name}\n".encode())
    return f"contents-{total.hexdigest()[:12]}"


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__

"""
What `model.from` is good for, in figures: more data, and another domain. Takes about three hours on 2 cores.

    python scripts/start_from_a_model.py MULTI30K OUTPUT [section.key=value ...]

MULTI30K is the folder of configs/multi30k_en_de.yaml. The second domain is messages of programs (Git, GCC, LibreOffice)
from English to German. They come from Debian packages, which `apt-get download` fetches; on another system, put their
German .mo files into OUTPUT/data/messages/mo. The same command goes on where it was stopped. Overrides are for all
trainings, to try the script:

    training.max_steps=4 training.warmup_steps=1 training.average_checkpoints=1 training.save_steps=4
"""

import gettext
import gzip
import hashlib
import json
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

BASE = Path(__file__).parents[1] / "configs" / "multi30k_en_de.yaml"
PACKAGES = ("git", "gcc-12-locales", "libreoffice-l10n-de")
GERMAN = "*/de/LC_MESSAGES/*.mo"
WORDS = range(3, 41)  # in a message: shorter ones have no context, longer ones are help pages
HELD_OUT = {"test": 1000, "validation": 500}
SIDES = ("en", "de")
Pair = tuple[str, str]

FROM_SCRATCH: dict[str, Any] = {}
FURTHER = {"max_steps": 1500, "learning_rate": 1e-3, "warmup_steps": 200, "eval_steps": 500}


def main() -> None:
    captions, output = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    half, messages = output / "data" / "half", output / "data" / "messages"
    make_half(captions, half)
    make_messages(messages)
    of_captions, of_messages = splits_of(captions), splits_of(messages)
    mixed = of_messages | {"train": [of_messages["train"] | {"weight": 1}, of_captions["train"] | {"weight": 1}]}
    trainings = (
        ("half", of_captions | {"train": files(half, "train")}, None, FROM_SCRATCH),
        ("continued", of_captions, "half", FURTHER),
        ("all", of_captions, None, FROM_SCRATCH),
        ("all_longer", of_captions, None, {"max_steps": 4500}),
        ("adapted", of_messages, "all", FURTHER),
        ("adapted_mixed", mixed, "all", FURTHER),
        ("messages", of_messages, None, FROM_SCRATCH),
    )
    for name, data, origin, training in trainings:
        train(output, name, data, origin, training)
    tests = {"captions": of_captions["test"], "messages": of_messages["test"]}
    rows = [[name, *scores(output / name, tests)] for name, *_ in trainings]
    print(table(["run", *(f"{test} {metric}" for test in tests for metric in ("BLEU", "chrF"))], rows))


def files(folder: Path, name: str) -> dict[str, Any]:
    return {"source": str(folder / f"{name}.en.gz"), "target": str(folder / f"{name}.de.gz")}


def splits_of(folder: Path) -> dict[str, Any]:
    names = {"validation": "val", "test": "test_2016_flickr"} if (folder / "val.en.gz").exists() else {}
    return {split: files(folder, names.get(split, split)) for split in ("train", *HELD_OUT)}


def train(output: Path, name: str, data: dict[str, Any], origin: str | None, training: dict[str, Any]) -> None:
    """Write a recipe and train it, or go on with its training. A training that is complete takes no further step."""
    recipe = yaml.safe_load(BASE.read_text(encoding="utf-8"))
    recipe["data"] |= data
    recipe["training"] |= training
    if origin:
        recipe["tokenizer"] = {"dropout": recipe["tokenizer"]["dropout"]}
        recipe["model"] = {"from": str(output / origin), "dropout": recipe["model"]["dropout"]}
    file, run = output / f"{name}.yaml", output / name
    file.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    if not (run / "report.json").exists():
        command = [sys.executable, "-m", "hf_vanilla", "train", str(file), *sys.argv[3:], "--output", str(run)]
        subprocess.run(command, check=True)  # noqa: S603


def scores(run: Path, tests: dict[str, Any]) -> list[float]:
    """BLEU and chrF of a run on each test set; measured once."""
    known = run.with_suffix(".scores.json")
    if not known.exists():
        from hf_vanilla.evaluation.metrics import report
        from hf_vanilla.inference.translator import Translator

        translator, found = Translator.from_pretrained(run), []
        for test in tests.values():
            sources, references = (lines_of(Path(test[side])) for side in ("source", "target"))
            scored = report(translator.translate([(source,) for source in sources]), references, ("bleu", "chrf"))
            found += [scored["bleu"], scored["chrf"]]
        known.write_text(json.dumps(found))
    return json.loads(known.read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *([name, *(f"{score:.2f}" for score in found)] for name, *found in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def make_half(captions: Path, folder: Path) -> None:
    """Every second pair of Multi30k's training pairs."""
    pairs = list(zip(*(lines_of(captions / f"train.{side}.gz") for side in SIDES), strict=True))
    write(folder, "train", pairs[::2])


def make_messages(folder: Path) -> None:
    """Pairs of messages, divided by a hash of the English text, so that nothing is in two splits."""
    catalogues = folder / "mo"
    if not catalogues.exists():
        fetch(catalogues)
    pairs = sorted(dict(messages_in(catalogues)).items(), key=lambda pair: hashed(pair[0]))
    for split, size in HELD_OUT.items():
        write(folder, split, pairs[:size])
        pairs = pairs[size:]
    write(folder, "train", pairs)
    print(f"messages: {len(pairs):,} training pairs from {len(list(catalogues.rglob('*.mo')))} files", file=sys.stderr)


def fetch(folder: Path) -> None:
    folder.mkdir(parents=True)
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, check=True)  # noqa: S603, S607
    for package in sorted(folder.glob("*.deb")):
        print(f"{package.name}: SHA-256 {hashlib.sha256(package.read_bytes()).hexdigest()}", file=sys.stderr)
        archive = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout  # noqa: S603, S607
        place = folder / package.stem
        place.mkdir()
        subprocess.run(["tar", "-x", "-C", place, "--wildcards", GERMAN], input=archive, check=True)  # noqa: S603, S607
        package.unlink()


def messages_in(folder: Path) -> Iterator[Pair]:
    """Messages of one line that are translated, each English text once."""
    seen = set()
    for file in sorted(folder.rglob("*.mo")):
        with file.open("rb") as opened:
            catalogue = gettext.GNUTranslations(opened)
        for key, german in vars(catalogue)["_catalog"].items():  # there is no public way to list them
            english = key[0] if isinstance(key, tuple) else key
            pair = english.rpartition("\x04")[2].strip(), german.strip()
            is_line = not any(set("\n\t\r") & set(text) for text in pair)
            if is_line and len(pair[0].split()) in WORDS and pair[1] not in ("", pair[0]):
                if hashed(pair[0]) not in seen:
                    yield pair
                seen.add(hashed(pair[0]))


def hashed(text: str) -> str:
    """Of a text as it reads: texts that differ in case, white space or numbers only have the same."""
    plain = " ".join(unicodedata.normalize("NFC", text).casefold().split())
    return hashlib.sha256("".join("0" if char.isdigit() else char for char in plain).encode()).hexdigest()


def lines_of(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode("utf-8").removesuffix("\n").split("\n")


def write(folder: Path, split: str, pairs: Iterable[Pair]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for side, lines in zip(SIDES, zip(*pairs, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in lines).encode()
        (folder / f"{split}.{side}.gz").write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    main()

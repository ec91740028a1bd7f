"""
Whether the files of a model are what they say, looked at before any of them is loaded.

Only names, links and headers are read: nothing is unpickled, no code runs, and no memory is taken for sizes that a
configuration claims.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from .data.errors import InvalidDataError
from .data.existing_tokenizer import OLDER_SETTINGS, SETTINGS, refuse_crashes
from .models.configuration_vanilla import VanillaConfig
from .models.modeling_vanilla import VanillaForConditionalGeneration
from .run_directory import GENERATION_CONFIG, TOKENIZER, WEIGHTS, checkpoints_of

CONFIG = "config.json"
ADAPTER = "adapter_config.json"  # of peft
INDEX = f"{WEIGHTS}.index.json"
FIELDS = {entry.name for entry in fields(VanillaConfig)} - {entry.name for entry in fields(PreTrainedConfig)}
MAX_BEAMS = 1_000  # that a model may ask for; an option of a call may be more
MAX_JSON_BYTES = 2**26  # of configurations; the largest tokenizers have less than 2**25
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")

Shapes = dict[str, tuple[int, ...]]


def check_model(folder: Path, trust_remote_code: bool = False) -> None:
    """
    Raise InvalidDataError, which names file and reason, unless a directory holds a model that can be loaded safely.

    Of a model of another type than ours, the sizes that its configuration claims are not checked.
    """
    refuse_links_that_leave(folder)
    found = read_json(folder / CONFIG)
    _refuse_other_weights(folder, found)
    is_ours = found.get("model_type") == VanillaConfig.model_type
    settings = _read_if_there(folder / SETTINGS)
    _read_if_there(folder / OLDER_SETTINGS)
    refuse_huge_searches(folder)
    for name, facts in ((CONFIG, {} if is_ours else found), (SETTINGS, settings)):
        if "auto_map" in facts and not trust_remote_code:
            raise InvalidDataError(f"{folder / name}: names code that came with it (auto_map), which is never run")
    stored = shapes_of(folder)
    if is_ours:
        for mistake in mistakes_of_shapes(stored, config_of(folder, found)):
            raise InvalidDataError(f"{folder / WEIGHTS}: {mistake}")
    if (folder / TOKENIZER).exists():
        refuse_crashes(folder / TOKENIZER)


def check_tokenizer(folder: str | Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> None:
    """Raise InvalidDataError unless each id of the tokenizer is a row of the embedding, and texts can be padded."""
    numbers = tokenizer.get_vocab().values()
    if numbers and (largest := max(numbers)) >= vocab_size:
        raise InvalidDataError(
            f"{folder}: its tokenizer has the id {largest:,} and its model {vocab_size:,} ids: they do not fit together"
        )
    for name in ("pad_token", "eos_token"):
        if getattr(tokenizer, name) is None:
            raise InvalidDataError(f"{folder}: its tokenizer has no {name}, which every model of ours needs")


def _refuse_other_weights(folder: Path, config: Mapping[str, Any]) -> None:
    """What transformers would load in place of the weights that are looked at here, or beside them."""
    if config.get("transformers_weights") is not None:
        raise InvalidDataError(
            f"{folder / CONFIG}: transformers_weights names another file with weights: call that {WEIGHTS}, and take "
            "the key out"
        )
    if (folder / ADAPTER).exists():
        raise InvalidDataError(
            f"{folder / ADAPTER}: an adapter changes the model beside it: merge it first (merge_and_unload() of peft), "
            "and save the result"
        )


def _read_if_there(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def refuse_huge_searches(folder: Path) -> None:
    """As wide as these, the first step alone takes all memory."""
    file = folder / GENERATION_CONFIG
    settings = _read_if_there(file)
    for key in ("num_beams", "num_return_sequences"):
        value = settings.get(key)
        if value is not None and not (isinstance(value, int) and 0 < value <= MAX_BEAMS):
            raise InvalidDataError(f"{file}: {key}: {value!r:.40} must be a number from 1 to {MAX_BEAMS:,}")


def refuse_links_that_leave(folder: Path) -> None:
    """What is in a directory shall be in it; only the cache of the Hub may have its files beside the directory."""
    allowed = [folder.resolve()]
    if folder.absolute().parent.name == "snapshots":
        allowed.append((folder.absolute().parent.parent / "blobs").resolve())
    for path in folder.iterdir():
        if path.is_symlink() and not any(path.resolve().is_relative_to(place) for place in allowed):
            raise InvalidDataError(f"{path}: is a link out of its directory: put the file itself there")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object of a model's directory."""
    try:
        size = file.stat().st_size
        if size > MAX_JSON_BYTES:
            raise InvalidDataError(f"{file}: has {size:,} bytes, more than the limit of {MAX_JSON_BYTES:,}")
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidDataError(f"{file.parent} has no {file.name}: name the directory of a model") from None
    except InvalidDataError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidDataError(f"{file}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise InvalidDataError(f"{file}: must be a JSON object, not {type(found).__name__}")
    return found


def config_of(folder: Path, found: Mapping[str, Any]) -> VanillaConfig:
    """Only fields that we know are taken from the file."""
    try:
        return VanillaConfig(**{key: value for key, value in found.items() if key in FIELDS})
    except (StrictDataclassError, TypeError) as error:
        raise InvalidDataError(f"{folder / CONFIG}: {str(error).splitlines()[-1].strip()}") from None


def shapes_of(folder: Path) -> Shapes:
    """The shape of each weight in the directory, by the headers of its files."""
    found: Shapes = {}
    for file in files_of(folder):
        try:
            with safe_open(file, framework="pt") as stored:
                found |= {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise InvalidDataError(f"{file}: cannot be read: {error}") from None
    return found


def files_of(folder: Path) -> list[Path]:
    """The files with its weights: one, or those that an index names."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise InvalidDataError(no_weights(folder))
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InvalidDataError(f"{folder / INDEX}: weight_map must say for each weight the name of its file")
    for name in sorted(set(names.values())):
        if not is_plain(name) or not name.endswith(".safetensors"):
            raise InvalidDataError(f"{folder / INDEX}: {name!r:.80} is not the name of a .safetensors file beside it")
        if not (folder / name).is_file():
            raise InvalidDataError(f"{folder / name} is missing, and {INDEX} names it")
    return [folder / name for name in sorted(set(names.values()))]


def is_plain(name: str) -> bool:
    """Whether it names a file in a directory, and nothing above, below or elsewhere."""
    return name not in ("", ".", "..") and not {*name} & {"/", "\\", "\0"} and PurePosixPath(name).name == name


def no_weights(folder: Path) -> str:
    """What to do where a directory has no weights that can be read."""
    finished = [checkpoint.name for checkpoint in checkpoints_of(folder)]
    if finished:
        return (
            f"{folder} has no {WEIGHTS}: its training is not finished; name one of its checkpoints, such as "
            f"{folder / finished[-1]}"
        )
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    found = f" (only {', '.join(pickles[:3])})" if pickles else ""
    return (
        f"{folder} has no {WEIGHTS}{found}: weights are read from safetensors, not from pickles, which can hold code; "
        "load the model where it can be trusted, and write it with save_pretrained(DIRECTORY, max_shard_size='100GB')"
    )


def mistakes_of_shapes(stored: Shapes, config: VanillaConfig) -> Iterator[str]:
    """What is wrong with weights of these shapes as those of the configuration. Nothing is allocated."""
    layers = config.encoder_layers + config.decoder_layers
    if layers > len(stored):  # so that no list of a billion layers is made
        yield f"has {len(stored)} weights, too few for the {layers:,} layers of {CONFIG}"
    expected, tied = expected_shapes(config)
    for name in sorted(expected.keys() - stored.keys() - tied.keys()):
        yield f"{name} is missing"
    for name in sorted(stored.keys() - expected.keys()):
        yield f"{name} is no weight of this model"
    for name in sorted(stored):
        if stored[name] != expected[name]:
            yield f"{name} has the shape {stored[name]}, and {CONFIG} says {expected[name]}"


def expected_shapes(config: VanillaConfig) -> tuple[Shapes, Mapping[str, str]]:
    """The shape of each weight, and for each weight that is shared the one that it is. Nothing is allocated."""
    try:
        with torch.device("meta"):
            model = VanillaForConditionalGeneration(config)
    except (RuntimeError, TypeError, OverflowError) as error:  # numbers that PyTorch cannot have
        reason = str(error).splitlines()[0]
        raise InvalidDataError(f"{CONFIG}: no such model can be built: {reason:.200}") from None
    weights: Mapping[str, Tensor] = model.state_dict()
    return {name: tuple(weight.shape) for name, weight in weights.items()}, model.all_tied_weights_keys

"""
Writes tests/interop/data again: small random checkpoints by fairseq and JoeyNMT themselves, with the logits that these
compute. Needs both on the path; they were made for older versions of Python and PyTorch:

    pip download --no-deps joeynmt==2.3.0            # unpack both wheels into one folder
    pip download --no-deps --only-binary=:all: --python-version 3.8 --platform manylinux1_x86_64 fairseq==0.12.2
    pip install --target FOLDER --no-deps omegaconf==2.0.6 hydra-core==1.0.7 antlr4-python3-runtime==4.8 \\
        bitarray sacrebleu sacremoses subword-nmt sentencepiece
    PYTHONPATH=FOLDER python tests/interop/trial_record.py
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import json
import random
import sys
import types
from pathlib import Path

import torch
import yaml

DATA = Path(__file__).parent / "data"
LETTERS = "abcdefgh"


class Stub(types.ModuleType):
    """What the toolkits import and a Transformer does not use."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def prepare() -> None:
    """Old packages on a new Python: stubs, and mutable defaults in dataclasses, which 3.11 refuses."""
    sys.modules["importlib_metadata"] = importlib.metadata
    for name in ("torchaudio", "cffi", "cython", "seaborn", "plotly", "torch.utils.tensorboard"):
        sys.modules.setdefault(name, Stub(name))
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401 -- before `dataclass` is another

    original = dataclasses.dataclass

    def dataclass(cls: type | None = None, /, **options: object) -> object:
        options.setdefault("eq", False)
        return original(cls, **options) if cls is not None else functools.partial(dataclass, **options)

    dataclasses.dataclass = dataclass


def randomise(model: torch.nn.Module) -> None:
    """Biases and norms too, so that no wrong place hides."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)


def batch(size: int, start: int, pad: int, pad_left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.randint(4, size, (3, 7))
    if pad_left:
        source[0, :2] = pad
    else:
        source[0, 5:] = pad
    target = torch.randint(4, size, (3, 5))
    target[:, 0] = start
    return source, target


def save(folder: Path, source: torch.Tensor, target: torch.Tensor, logits: torch.Tensor) -> None:
    found = {"source": source.tolist(), "target": target.tolist(), "logits": logits.tolist()}
    (folder / "recorded.json").write_text(json.dumps(found))


def fairseq_checkpoint(name: str, two_dictionaries: bool = False, namespace: bool = False, **changes: object) -> None:
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModel, base_architecture

    torch.manual_seed(3)
    folder = DATA / name
    folder.mkdir(parents=True, exist_ok=True)
    dictionaries = []
    for side in range(2):
        dictionary = Dictionary()
        for number in range(12 + 3 * side * two_dictionaries):
            dictionary.add_symbol(f"w{number + 5 * side * two_dictionaries}")
        dictionaries.append(dictionary)
        dictionary.save(str(folder / f"dict.{('src', 'tgt')[side]}.txt"))

    class Task:
        source_dictionary, target_dictionary = dictionaries

    sizes = {f"{stack}_embed_dim": 8 for stack in ("encoder", "decoder")}
    sizes |= {f"{stack}_ffn_embed_dim": 12 for stack in ("encoder", "decoder")}
    sizes |= {f"{stack}_attention_heads": 2 for stack in ("encoder", "decoder")}
    sizes |= {"encoder_layers": 1, "decoder_layers": 2, "max_source_positions": 20, "max_target_positions": 16}
    args = argparse.Namespace(**sizes | {"dropout": 0.1, "left_pad_source": True} | changes)
    base_architecture(args)
    model = TransformerModel.build_model(args, Task).eval()
    randomise(model)
    source, target = batch(len(dictionaries[0]), 2, 1, pad_left=True)
    target[:, 1:] = target[:, 1:].clamp(max=len(dictionaries[1]) - 1)
    stored_state = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        logits = model.double()(source, (source != 1).sum(1), target)[0]
    task = argparse.Namespace(source_lang="src", target_lang="tgt")
    stored = (
        {"args": args, "cfg": None} if namespace else {"args": None, "cfg": {"model": vars(args), "task": vars(task)}}
    )
    if namespace:
        vars(args).update(vars(task))
    torch.save(stored | {"model": stored_state}, folder / "checkpoint_best.pt")
    save(folder, source, target, logits)


def joeynmt_checkpoint(
    name: str, norm: str, activation: str, level: str, one_vocabulary: bool, scale: bool = True
) -> None:
    from joeynmt.model import build_model
    from joeynmt.tokenizers import BasicTokenizer
    from joeynmt.vocabulary import Vocabulary

    torch.manual_seed(4)
    folder = DATA / name
    folder.mkdir(parents=True, exist_ok=True)
    specials = types.SimpleNamespace(
        **{
            f"{key}_token": token
            for key, token in (("unk", "<unk>"), ("pad", "<pad>"), ("bos", "<s>"), ("eos", "</s>"))
        },
        **{f"{key}_id": number for number, key in enumerate(("unk", "pad", "bos", "eos"))},
        sep_token=None,
        sep_id=None,
        lang_tags=[],
    )
    tokens = ["▁", *LETTERS] if level == "char" else [f"w{number}" for number in range(10)]
    others = tokens if one_vocabulary else [f"v{number}" for number in range(7)] + tokens[:5]
    vocabularies = [Vocabulary(tokens, specials), Vocabulary(others, specials)]
    for side, vocabulary in zip(("src", "trg"), vocabularies, strict=True):
        vocabulary.to_file(folder / f"{side}_vocab.txt")
    layers = {"type": "transformer", "num_heads": 2, "hidden_size": 8, "ff_size": 12, "dropout": 0.1}
    layers |= {"layer_norm": norm, "activation": activation, "embeddings": {"embedding_dim": 8, "scale": scale}}
    model = {"encoder": layers | {"num_layers": 1}, "decoder": layers | {"num_layers": 2}}
    model |= {"tied_embeddings": one_vocabulary, "tied_softmax": one_vocabulary, "initializer": "xavier_uniform"}
    side = {"level": level, "lowercase": level == "char", "normalize": False}
    config = {"name": name, "data": {"src": {"lang": "s", **side}, "trg": {"lang": "t", **side}}, "model": model}
    config = json.loads(json.dumps(config | {"testing": {"beam_size": 4}}))  # nothing twice, so no aliases
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    joey = build_model({**model, "embed_initializer": "xavier_uniform"}, *vocabularies).eval()
    randomise(joey)
    source, target = batch(len(vocabularies[0]), 2, 1, pad_left=False)
    mask = (source != 1)[:, None]
    state = {name: weight.clone() for name, weight in joey.state_dict().items()}
    joey.double()
    with torch.no_grad():
        encoded, hidden = joey._encode(src=source, src_length=mask.sum((1, 2)), src_mask=mask)
        logits = joey._decode(
            encoder_output=encoded,
            encoder_hidden=hidden,
            src_mask=mask,
            trg_input=target,
            unroll_steps=5,
            decoder_hidden=None,
            trg_mask=(target != 1)[:, None],
        )[0]
    for stack in ("encoder", "decoder"):
        state[f"{stack}.pe.pe"] = state[f"{stack}.pe.pe"][:, :8].clone()  # of 5,000 rows that the paper's formula gives
    torch.save({"model_state": state, "stats_state": {"steps": 1}}, folder / "best.ckpt")
    save(folder, source, target, logits)
    lines = ["abba cafe", "Ab hZ", "w3 w1 w99", "w0"]
    reader = BasicTokenizer(level=level, lowercase=side["lowercase"])
    ids = [vocabularies[0].sentences_to_ids([reader(reader.pre_process(line))], bos=False)[0][0] for line in lines]
    (folder / "ids.json").write_text(json.dumps({"lines": lines, "ids": ids}))


if __name__ == "__main__":
    random.seed(0)
    prepare()
    fairseq_checkpoint("fairseq_post_sinusoidal_tied", share_all_embeddings=True)
    fairseq_checkpoint("fairseq_pre_learned", encoder_normalize_before=True, decoder_normalize_before=True,
                       encoder_learned_pos=True, decoder_learned_pos=True, namespace=True)  # fmt: skip
    fairseq_checkpoint("fairseq_two_dictionaries", two_dictionaries=True, activation_fn="gelu", no_scale_embedding=True,
                       share_decoder_input_output_embed=True)  # fmt: skip
    joeynmt_checkpoint("joeynmt_pre_tied", "pre", "relu", "char", one_vocabulary=True)
    joeynmt_checkpoint("joeynmt_post_two_vocabularies", "post", "swish", "word", one_vocabulary=False)
    joeynmt_checkpoint("joeynmt_post_unscaled", "post", "gelu", "word", one_vocabulary=True, scale=False)

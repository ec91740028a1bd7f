"""
Whole n-best lists of an export to CTranslate2 in float32 against those of the model, with every documented option.

    python tests/interop/trial_ctranslate2.py [--sentences 1000] [--run RUN --source FILE]

Without RUN the models are random ones that end their targets at all lengths, pre-norm and post-norm. Another list is a
tie if all its scores are those of ours, rank by rank; the others are counted by what they are: found better or worse.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference.translator import Translator
from hf_vanilla.interop.export import export

LETTERS = ["a few words", "ABCDEFGHIJKLMNOPQRSTUVWXYZ bcghijklmnpqtuvxyz ,."]
BEAMS: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},
    "greedy, min_length 8": {"num_beams": 1, "min_length": 8},
    "greedy, no_repeat_ngram_size 2": {"num_beams": 1, "no_repeat_ngram_size": 2},
    "greedy, bad words, suppressed": {
        "num_beams": 1,
        "bad_words_ids": [[270, 271], [275]],
        "suppress_tokens": [272, 273],
    },
    "best of 4 beams": {"num_beams": 4},
    "4 best": BEAMS,
    "4 best, early_stopping": BEAMS | {"early_stopping": True},
    "4 best, early_stopping never": BEAMS | {"early_stopping": "never"},
    "4 best, length_penalty 0": BEAMS | {"length_penalty": 0.0},
    "4 best, length_penalty 0.6": BEAMS | {"length_penalty": 0.6},
    "4 best, length_penalty 1.5": BEAMS | {"length_penalty": 1.5},
    "4 best, length_penalty 1.5, early": BEAMS | {"length_penalty": 1.5, "early_stopping": True},
    "4 best, gnmt 0.6": BEAMS | {"length_penalty": 0.6, "length_penalty_type": "gnmt"},
    "4 best, gnmt 0.6, early": BEAMS | {"length_penalty": 0.6, "length_penalty_type": "gnmt", "early_stopping": True},
    "the paper's": {
        **BEAMS,
        "length_penalty": 0.6,
        "length_penalty_type": "gnmt",
        "max_length_beyond_source": 5,
        "early_stopping": "never",
    },
    "4 best, max_length 9": BEAMS | {"max_length": 9},
    "4 best, max_new_tokens 7": BEAMS | {"max_new_tokens": 7},
    "4 best, max_length_beyond_source 2": BEAMS | {"max_length_beyond_source": 2},
    "2 of 8 beams": {"num_beams": 8, "num_return_sequences": 2},
    "greedy, beginnings": {"num_beams": 1, "begun": True},
    "4 best, beginnings": BEAMS | {"begun": True},
    "4 best, beginnings, length_penalty 1.5": BEAMS | {"begun": True, "length_penalty": 1.5},
    "4 best, beginnings, early": BEAMS | {"begun": True, "early_stopping": True},
}


@torch.no_grad()
def random_translator(seed: int, **changes: Any) -> Translator:
    """No two hypotheses are so near that rounding could decide often."""
    torch.manual_seed(seed)
    tokenizer = train_tokenizer(LETTERS, "character")
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "num_heads": 4, "d_ff": 48}
    config = VanillaConfig(vocab_size=len(tokenizer), tie_word_embeddings=False, **sizes | changes)
    model = VanillaForConditionalGeneration(config).eval()
    embeddings = model.get_output_embeddings().weight
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.weight is not embeddings:
            module.weight.mul_((6 * module.in_features / (module.in_features + module.out_features)) ** 0.5)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)
    embeddings.mul_(1.5)
    embeddings[: 5 + 256] = 0
    often = tokenizer.convert_tokens_to_ids(list("XYBeaLs"))
    embeddings[tokenizer.eos_token_id] = 0.4 * embeddings[often].sum(0)
    model.generation_config.update(max_length=40, num_beams=4)
    return Translator(model, tokenizer)


def random_texts(number: int) -> list[str]:
    chosen = random.Random(5)
    return ["".join(chosen.choices(LETTERS[1], k=chosen.randrange(1, 25))).strip() or "x" for _ in range(number)]


def compared(run: Path, export_folder: Path, texts: list[str]) -> Iterator[tuple[str, int, int, int, int, float]]:
    ours, theirs = Translator.from_pretrained(run), Translator.from_pretrained(export_folder)
    begun = [text[: len(text) % 4].strip() for text in texts]
    for title, options in SETTINGS.items():
        given = {name: value for name, value in options.items() if name != "begun"}
        prefixes = begun if options.get("begun") else None
        started = time.perf_counter()
        expected = ours.hypotheses(texts, target_prefixes=prefixes, **given)
        between = time.perf_counter()
        found = theirs.hypotheses(texts, target_prefixes=prefixes, **given)
        ratio = (between - started) / (time.perf_counter() - between)
        same = tied = better = worse = 0
        for want, have in zip(expected, found, strict=True):
            gaps = [other.score - one.score for one, other in zip(want, have, strict=True)]
            if [one.token_ids for one in want] == [one.token_ids for one in have]:
                assert max(map(abs, gaps)) < 2e-4, (title, gaps)
                same += 1
            elif max(map(abs, gaps)) < 1e-4:
                tied += 1
            else:
                first = next(gap for gap in gaps if abs(gap) >= 1e-4)
                better, worse = better + (first > 0), worse + (first < 0)
        yield title, same, tied, better, worse, ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--source", type=Path, help="Texts for RUN, one on a line.")
    arguments = parser.parse_args()
    fewest = 1.0
    with tempfile.TemporaryDirectory() as name:
        runs = {"RUN": arguments.run} if arguments.run else {}
        for norm_first in () if arguments.run else (False, True):
            runs[f"random, norm_first={norm_first}"] = folder = Path(name) / f"run{norm_first}"
            translator = random_translator(3, norm_first=norm_first)
            translator.model.save_pretrained(folder)
            translator.tokenizer.save_pretrained(folder)
        for number, (title, run) in enumerate(runs.items()):
            folder = Path(name) / f"export{number}"
            export(run, "ctranslate2", folder)
            lines = arguments.source.read_text(encoding="utf-8").splitlines() if arguments.source else None
            texts = lines[: arguments.sentences] if lines else random_texts(arguments.sentences)
            print(f"{title}: {len(texts)} texts")
            for what, same, tied, better, worse, ratio in compared(run, folder, texts):
                fewest = min(fewest, (same + tied) / len(texts))
                print(f"  {what:40} same {same:5} tied {tied} better {better} worse {worse}  {ratio:.2f} times as fast")
                sys.stdout.flush()
    sys.exit(0 if fewest >= 0.995 else f"only {100 * fewest:.1f} % are the same")


if __name__ == "__main__":
    main()

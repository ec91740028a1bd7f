"""How time and memory grow with each size: neither should grow faster than the arithmetic of the model."""

import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from statistics import median

import torch
import yaml

from ..data.batching import TokenBudgetBatches
from ..data.dataset import PairCollator, TrainingPairs, lengths_of
from ..memory import keep_freed_memory, peak_memory
from ..models.configuration_vanilla import VanillaConfig
from ..models.modeling_vanilla import VanillaForConditionalGeneration
from ..training.cpu import make_fast_on_cpu
from ..training.preparation import prepare
from ..training.recipe import load_recipe
from .peak import counted_operations
from .rounds import Figures, Row, in_a_fresh_process, measured_rows

TOKENS, STEPS = 4096, 3
SENTENCES, WORDS, LONGEST = 16, 5000, 20


def compare_growth(largest_corpus: int, rounds: int) -> list[Row]:
    """Training by width, length and threads; search by beams; preparing the data by number of pairs."""
    corpora = [size for size in (10**4, 10**5, 10**6, 10**7) if size <= largest_corpus]
    experiments: dict[str, dict[str, Callable[[], Figures]]] = {
        "training, by width": {f"d_model {width}": partial(train, width=width) for width in (128, 256, 512, 1024)},
        "training, by length": {f"{n} tokens": partial(train, length=n) for n in (8, 32, 128, 512, 1024)},
        "training, by threads": {f"{number} threads": partial(train, threads=number) for number in (1, 2)},
        "search, by beams": {f"{beams} beams": partial(search, beams) for beams in (1, 2, 4, 8, 16)},
        "data, by pairs": {f"{size:,} pairs": partial(begin, size) for size in corpora},
    }
    return [row for what, contenders in experiments.items() for row in measured_rows(what, contenders, rounds)]


def small_model(width: int = 128) -> VanillaForConditionalGeneration:
    layers = {"encoder_layers": 4, "decoder_layers": 4}
    return VanillaForConditionalGeneration(
        VanillaConfig(vocab_size=10_000, d_model=width, d_ff=2 * width, num_heads=max(4, width // 64), **layers)
    )


def train(width: int = 128, length: int = 16, threads: int | None = None) -> Figures:
    """Training steps with always the same number of tokens, so that more length means fewer sentences."""
    torch.set_num_threads(threads or torch.get_num_threads())
    model = small_model(width).train()
    make_fast_on_cpu(model)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(5, 10_000, (TOKENS // length, length))

    @torch.autocast("cpu", torch.bfloat16)
    def step() -> None:
        model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, skip_logits=True).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return _measured(step, tokens=TOKENS)


@torch.no_grad()
def search(beams: int) -> Figures:
    """Search with random weights, which go on until the length limit."""
    keep_freed_memory()
    model = small_model().eval()
    ids = torch.randint(5, 10_000, (SENTENCES, LONGEST))
    options = {"num_beams": beams, "max_new_tokens": LONGEST, "early_stopping": False}
    return _measured(partial(model.generate, ids, **options), tokens=SENTENCES * LONGEST)


def _measured(act: Callable[[], object], tokens: int) -> Figures:
    with counted_operations() as counter:
        act()
    seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    usual = median(seconds)
    giga = counter.get_total_flops() / 1e9
    return {"tokens per second": tokens / usual, "GFLOP per second": giga / usual, "MiB": peak_memory() / 2**20}


def begin(pairs: int) -> Figures:
    """From two text files to the first batch: the first time, and again with the prepared data."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = write_corpus(Path(folder), pairs)
        first, again = (in_a_fresh_process(partial(first_batch, recipe)) for _ in range(2))
    return {
        f"{figure}, {when}": value
        for when, figures in (("at first", first), ("again", again))
        for figure, value in figures.items()
    }


def write_corpus(folder: Path, pairs: int) -> Path:
    """Write lines of random words, with frequencies as in natural text (Zipf's law), and a recipe to train on them."""
    generator = random.Random(1)  # noqa: S311 -- not for secrets
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(WORDS)]
    frequencies = list(accumulate(1 / rank for rank in range(1, WORDS + 1)))
    choose = partial(generator.choices, words, cum_weights=frequencies)
    for side in ("source", "target"):
        with (folder / side).open("w") as file:
            for _ in range(pairs):
                file.write(" ".join(choose(k=generator.randint(4, 20))) + "\n")
    corpus = {"source": str(folder / "source"), "target": str(folder / "target")}
    recipe = {
        "data": {"train": corpus, "validation": {"generated": "spoken_forms", "split": "validation", "size": 10}},
        "tokenizer": {"kind": "bpe", "vocab_size": 8000},
        "training": {"max_steps": 1},
    }
    (folder / "run").mkdir()
    (folder / "growth.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "growth.yaml"


def first_batch(file: Path) -> Figures:
    started = time.perf_counter()
    recipe = load_recipe(file, [])
    prepared = prepare(recipe, file.parent / "run")
    examples = TrainingPairs(prepared.train)
    (keys,) = islice(TokenBudgetBatches(lengths_of(prepared.train), TOKENS), 1)
    PairCollator(prepared.tokenizer.pad_token_id)([examples[key] for key in keys])
    return {"seconds": time.perf_counter() - started, "MiB": peak_memory() / 2**20}

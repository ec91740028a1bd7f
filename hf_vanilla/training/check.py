"""A look at a recipe before it is trained: sizes, costs, and what is probably wrong."""

import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any
from unicodedata import normalize

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from transformers import PreTrainedTokenizerFast, Seq2SeqTrainingArguments

from ..data.batching import TokenBudgetBatches
from ..data.corpus import read_pairs
from ..data.dataset import PairCollator, TrainingPairs, lengths_of, mixture_of, sizes_of
from ..data.quality import Finding, Split, all_findings
from ..data.tokenizer import BYTES, RESERVED, Encoder
from ..files import free_space
from ..memory import peak_memory
from ..models.modeling_vanilla import VanillaForConditionalGeneration
from ..run_directory import refuse_foreign
from .arguments import arguments_here
from .cpu import make_fast_on_cpu
from .machine import refuse_unsupported_systems
from .options import WITHOUT_WARM_UP
from .origin import completed
from .preparation import Prepared, prepare
from .recipe import Recipe
from .run import new_model
from .trainer import for_training

TIMED_STEPS = 3
BYTES_OF_A_WEIGHT, BYTES_OF_ITS_ADAM = 4, 8

# Rates. Our recipes have one to three times the peak of equation 3 for their width and the warm-up of the paper. For
# fine-tuning rates are much lower: Trainer's default, 5e-5, is a 14th of it for the base model.
# A short warm-up does not make the high rates good that equation 3 has for it: the quick start with its 200 steps and
# this rate, 4.5 times that of a long warm-up, has a loss of 2.2 after 400 steps, with its own rate 1.4.
# The published settings for Multi30k have 2.5 times the rate of equation 3, normalise after residual sums, and learn.
HIGH_RATE = 2.6  # times equation 3's peak for the recipe's warm-up, if layers are normalised after each residual sum
HIGHEST_RATE = 4  # times equation 3's peak for the warm-up of the paper, likewise, up to this depth:
USUAL_DEPTH = 4  # with 3.6 times that rate 4+4 layers learn, 6+6 only slowly, 12+12 do not (docs/ablations.md)
LOW_RATE = 0.1  # times equation 3's peak for the warm-up of the paper, or of the recipe if that is longer
WARM_UP_OF_THE_PAPER = 4000

# Lengths. The quick start sees its data 14 times, the fewest of our recipes, and the paper's base model saw its 4.5
# million pairs about 20 times. Large data need not be seen so often.
FEW_EPOCHS = 10
ENOUGH_TARGET_TOKENS = 10_000_000

# Vocabularies. 100 examples of a token are enough to learn it (Gowda and May, 2020, "Finding the Optimal Vocabulary
# Size for Neural Machine Translation"), 5 hardly. On Multi30k 12 % of 10,000 tokens are rarer, and 52 % of 20,000. With
# its first 1,000 pairs 58 % of 3,000 are, and that was no worse than the 2,000 that init takes (docs/ablations.md).
RARE = 5  # occurrences
MANY_RARE = 0.5  # of the tokens
FREQUENT = 20 * 100  # occurrences of the median token: many more tokens would still be frequent enough
SHORT_TOKENS = 2  # characters in a usual token: on Multi30k 1.8 with 400 tokens, 2.3 with 600, 4.3 with 10,000
MANY_UNKNOWN = 0.05  # of the words
TRIED_TEXTS = 1000  # for decoding what was encoded


@dataclass
class Report:
    """Facts to look at, and findings to act on."""

    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """A recipe with its data prepared and its model built, as for training."""

    recipe: Recipe
    arguments: Seq2SeqTrainingArguments
    prepared: Prepared
    model: VanillaForConditionalGeneration
    examples: TrainingPairs
    batches: TokenBudgetBatches
    unseen: Mapping[str, np.ndarray]  # lengths of the other splits, in tokens

    @cached_property
    def lengths(self) -> np.ndarray:
        return lengths_of(self.prepared.train)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.batches) // self.arguments.gradient_accumulation_steps

    @property
    def steps(self) -> int:
        limit = self.arguments.max_steps
        return limit if limit > 0 else math.ceil(self.arguments.num_train_epochs * self.steps_per_epoch)

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters())

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch

    @property
    def checkpoints(self) -> int:
        """How many there will be at the same time: the newest, and the best of all."""
        made = math.ceil(self.steps / self.steps_between_checkpoints)
        return min(made, (self.arguments.save_total_limit or made) + 1)

    @property
    def steps_between_checkpoints(self) -> int:
        if self.arguments.save_strategy == "epoch":
            return self.steps_per_epoch
        return every(self.arguments.save_steps, self.steps) if self.arguments.save_strategy == "steps" else self.steps

    @property
    def checkpoints_to_average(self) -> int:
        """To choose the best, a checkpoint must have been validated."""
        if self.recipe.training.average == "last" or self.arguments.eval_strategy != "steps":
            return self.checkpoints
        between = self.steps_between_checkpoints
        return self.checkpoints * between // math.lcm(between, every(self.arguments.eval_steps, self.steps))

    @property
    def bytes_on_disk(self) -> int:
        of_a_checkpoint = self.parameters * (BYTES_OF_A_WEIGHT + BYTES_OF_ITS_ADAM)
        encoded = 2 * 4 * int(self.lengths.sum())
        return (self.checkpoints + 1) * of_a_checkpoint + 2 * self.parameters * BYTES_OF_A_WEIGHT + encoded


def check(recipe: Recipe, run: Path) -> Report:
    """Prepare the data in a temporary folder, build the model, and take a few steps. `run` stays as it is."""
    refuse_foreign(run)
    refuse_unsupported_systems()
    recipe = completed(recipe, run)
    splits = {name: getattr(recipe.data, name) for name in ("train", "validation", "test")}
    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_here(recipe, Path(folder))
        prepared = prepare(recipe, Path(folder))
        plan = _plan(recipe, arguments, prepared)
        report = Report()
        texts = {name: Split(name, corpora) for name, corpora in splits.items() if corpora}
        training = texts.pop("train")
        report.facts |= _facts(plan, {"train": len(training)} | {name: len(split) for name, split in texts.items()})
        languages = recipe.data.source_language, recipe.data.target_language
        report.findings += all_findings(training, texts.values(), languages)
        report.findings += _findings_of_tokens(plan, training, texts)
        report.findings += _findings_of_vocabulary(plan)
        report.findings += _findings_of_rate(plan)
        report.findings += _findings_of_length(plan)
        report.findings += _findings_of_recipe(plan)
        report.facts |= _measured(plan)
        report.findings += _findings_of_room(plan, free_space(run))
    return report


def _plan(recipe: Recipe, arguments: Seq2SeqTrainingArguments, prepared: Prepared) -> Plan:
    model = new_model(recipe, prepared.tokenizer, prepared.origin)
    if arguments.use_cpu:
        make_fast_on_cpu(model)
    unseen = {"validation": lengths_of(prepared.validation)}
    if recipe.data.test:
        encoder, pairs = Encoder(prepared.tokenizer), list(read_pairs(recipe.data.test))
        sources = encoder.sources([pair.source for pair in pairs], [pair.prefix for pair in pairs])
        ids = sources, encoder.targets([pair.target for pair in pairs])
        unseen["test"] = np.array([[len(a), len(b)] for a, b in zip(*ids, strict=True)])
    mixture = mixture_of(prepared.train, [corpus.weight for corpus in recipe.data.train], arguments.seed)
    examples = TrainingPairs(prepared.train, mixture=mixture)
    batches = TokenBudgetBatches(
        examples.lengths, recipe.training.max_tokens, per_step=arguments.gradient_accumulation_steps
    )
    return Plan(recipe, arguments, prepared, model, examples, batches, unseen)


def _facts(plan: Plan, pairs: Mapping[str, int]) -> dict[str, Any]:
    facts: dict[str, Any] = {f"{name} pairs": f"{number:,}" for name, number in pairs.items()}
    if said := "; ".join(_mixture(plan)):
        facts["mixture"] = said
    for side, name in enumerate(("source", "target")):
        low, high = np.percentile(plan.lengths[:, side], (50, 99))
        facts[f"{name} tokens"] = (
            f"{int(plan.lengths[:, side].sum()):,} (median of a text {low:.0f}, 99th percentile {high:.0f})"
        )
    facts["vocabulary"] = f"{len(plan.prepared.tokenizer):,} tokens"
    facts["batches"] = f"{len(plan.batches):,} an epoch, padding {plan.batches.padding:.1%}"
    facts["training"] = f"{plan.steps:,} steps, {plan.epochs:.1f} epochs"
    facts["parameters"] = f"{plan.parameters:,}"
    facts["disk"] = f"{plan.bytes_on_disk / 2**20:,.0f} MiB, with {plan.checkpoints} checkpoints"
    return facts


def _mixture(plan: Plan) -> Iterator[str]:
    """What each corpus of the training pairs contributes, if they have weights or prefixes."""
    corpora, mixture = plan.recipe.data.train, plan.examples.mixture
    if len(corpora) > 1 and any(corpus.prefix or corpus.weight for corpus in corpora):
        sizes = sizes_of(plan.prepared.train, len(corpora))
        wanted = sizes if mixture is None else mixture.wanted
        for number, (corpus, size, pairs) in enumerate(zip(corpora, sizes, wanted, strict=True)):
            times = f", each {pairs / size:.1f} times" if pairs > size else ""
            prefix = f", after {corpus.prefix!r}" if corpus.prefix else ""
            yield f"{pairs / wanted.sum():.1%} of an epoch from data.train[{number}] ({pairs:,} pairs{times}{prefix})"


def _measured(plan: Plan) -> dict[str, Any]:
    """The time and memory of a training, estimated from a few of its steps."""
    collate = PairCollator(plan.prepared.tokenizer.pad_token_id)
    device = plan.arguments.device
    model = plan.model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    seconds = []
    for keys in islice(plan.batches, TIMED_STEPS + 1):
        started = time.perf_counter()
        inputs = {name: tensor.to(device) for name, tensor in collate([plan.examples[key] for key in keys]).items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=plan.arguments.bf16):
            model(**for_training(inputs, plan.recipe.training.r_drop)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    a_step = float(np.mean(seconds[1:] or seconds)) * plan.arguments.gradient_accumulation_steps
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else peak_memory()
    return {
        "time": f"about {timedelta(seconds=round(a_step * plan.steps))} on this machine, validations not counted",
        "memory": f"{memory / 2**20:,.0f} MiB",
    }


def _findings_of_tokens(plan: Plan, training: Split, others: Mapping[str, Split]) -> Iterator[Finding]:
    kept = {"train": len(plan.prepared.train), "validation": len(plan.prepared.validation)}
    for name, split in (("train", training), ("validation", others["validation"])):
        skipped = len(split) - kept[name]
        if skipped > 0.01 * len(split):
            yield Finding(
                f"{name}: {skipped:,} of {len(split):,} pairs are skipped, being empty or too long",
                "correct them, or raise data.max_source_length and data.max_target_length",
            )
    usual = plan.lengths.sum() / _characters(plan.prepared.train)
    for name, lengths in plan.unseen.items():
        if len(lengths) == len(others[name]):
            ratio = lengths.sum() / others[name].lengths.sum() / usual
            if ratio > 1.5:
                yield Finding(
                    f"{name}: its texts fall into {ratio:.1f} times as many tokens as the training texts",
                    "they seem to be spelt or tokenised differently; prepare both in the same way",
                )


def _findings_of_vocabulary(plan: Plan) -> Iterator[Finding]:
    tokenizer, counts, section = plan.prepared.tokenizer, _counts(plan.prepared), plan.recipe.tokenizer
    unknown = counts[tokenizer.unk_token_id] / max(1, counts.sum())
    is_given = bool(plan.recipe.model_from or section.from_)
    if unknown > MANY_UNKNOWN:
        yield Finding(
            f"{unknown:.0%} of the training tokens are unknown words",
            "take a model or tokenizer that has them, or train without it"
            if is_given
            else "raise tokenizer.vocab_size, or set tokenizer.kind: bpe, which has no unknown words",
        )
    if is_given:
        yield from _findings_of_existing_tokenizer(plan, counts)
        return
    learnt = counts[_first_learnt(tokenizer, section.kind) :]
    characters = _characters(plan.prepared.train) / counts.sum()
    is_too_large = len(tokenizer) < section.vocab_size
    if section.kind == "bpe" and len(tokenizer) != section.vocab_size:
        yield Finding(
            f"tokenizer.vocab_size is {section.vocab_size:,}, and the training text gives {len(tokenizer):,} tokens: "
            + ("each of its words is one" if is_too_large else "bytes and special tokens alone"),
            f"{'lower' if is_too_large else 'raise'} tokenizer.vocab_size",
        )
    elif section.kind != "character" and len(learnt) and (rare := float((learnt < RARE).mean())) > MANY_RARE:
        yield Finding(
            f"{rare:.0%} of the vocabulary occurs fewer than {RARE} times in training", "lower tokenizer.vocab_size"
        )
    elif section.kind == "bpe" and len(learnt) and characters < SHORT_TOKENS and np.median(learnt) > FREQUENT:
        yield Finding(
            f"a usual token has {characters:.1f} characters, and occurs {np.median(learnt):,.0f} times in training",
            "raise tokenizer.vocab_size: longer tokens make shorter sentences, and would be frequent enough",
        )


def _findings_of_existing_tokenizer(plan: Plan, counts: np.ndarray) -> Iterator[Finding]:
    """Nothing can be changed about the tokenizer of a model, but another one can be taken, or trained."""
    tokenizer, some = plan.prepared.tokenizer, plan.prepared.train[:TRIED_TEXTS]
    if plan.recipe.tokenizer.from_ is None:
        return
    learnt = counts[
        [index for token, index in tokenizer.get_vocab().items() if len(token) > 1 and token not in RESERVED]
    ]
    if len(learnt) and (rare := float((learnt < RARE).mean())) > MANY_RARE:
        yield Finding(
            f"{rare:.0%} of the tokens of tokenizer.from occur fewer than {RARE} times in training, and each has a row "
            "in the embedding",
            "train a tokenizer on these texts (take tokenizer.from out), or take a smaller one",
        )
    decoded = tokenizer.batch_decode(some["target_ids"], skip_special_tokens=True)
    other = [text for text, found in zip(some["target"], decoded, strict=True) if normalize("NFC", text) != found]
    if len(other) > MANY_UNKNOWN * len(decoded):
        yield Finding(
            f"the tokenizer of tokenizer.from does not give back {len(other):,} of {len(decoded):,} targets, such as "
            f"{other[0]!r:.60}: translations cannot look like them",
            "take another tokenizer, or train one (take tokenizer.from out)",
        )


def _characters(pairs: datasets.Dataset) -> int:
    sources, targets = (pairs.data.column(name).chunks for name in ("source", "target"))
    texts = [*(chunk.flatten() for chunk in sources), *targets]
    return sum(pc.sum(pc.utf8_length(chunk)).as_py() for chunk in texts)


def _counts(prepared: Prepared) -> np.ndarray:
    counts = np.zeros(len(prepared.tokenizer), dtype=np.int64)
    for name in ("source_ids", "target_ids"):
        for chunk in prepared.train.data.column(name).chunks:
            counts += np.bincount(chunk.flatten().to_numpy(), minlength=len(counts))
    return counts


def _first_learnt(tokenizer: PreTrainedTokenizerFast, kind: str) -> int:
    """Special tokens come first, and before what is learnt from the text all bytes, of which most never occur."""
    return len(tokenizer.all_special_ids) + (0 if kind == "word" else len(BYTES))


def _findings_of_rate(plan: Plan) -> Iterator[Finding]:
    """
    Only for Adam and its variants: rates of other optimizers cannot be compared with the paper's.

    A low rate is right for a model that has learnt before.
    """
    arguments, config = plan.arguments, plan.model.config
    warm_up, rate = arguments.get_warmup_steps(plan.steps), arguments.learning_rate
    if "adam" not in arguments.optim:
        return
    noam = config.d_model**-0.5 * max(1, warm_up) ** -0.5
    paper = config.d_model**-0.5 * max(WARM_UP_OF_THE_PAPER, warm_up) ** -0.5
    shallow = min(1.0, USUAL_DEPTH / max(config.encoder_layers, config.decoder_layers))
    for limit, peak, what in (
        (HIGH_RATE, noam, "this model and warm-up"),
        (HIGHEST_RATE * shallow, paper, f"this model and a warm-up of {WARM_UP_OF_THE_PAPER:,} steps"),
    ):
        if not config.norm_first and rate > limit * peak:
            yield Finding(
                f"a learning rate of {rate:g} at the peak is {rate / peak:.1f} times that of the paper for {what}, "
                "which is often too much where layers are normalised after the residual sum",
                f"set training.learning_rate to about {peak:.1e}, or model.norm_first: true",
            )
            break
    if rate < LOW_RATE * paper and not plan.recipe.model_from:
        yield Finding(
            f"a learning rate of {rate:g} at the peak is {rate / paper:.1%} of that of the paper for this model: it "
            "would learn very slowly",
            f"set training.learning_rate to about {paper:.1e}",
        )


def _findings_of_length(plan: Plan) -> Iterator[Finding]:
    warm_up, targets = plan.arguments.get_warmup_steps(plan.steps), int(plan.lengths[:, 1].sum())
    key = "max_steps" if plan.arguments.max_steps > 0 else "num_train_epochs"
    if warm_up > plan.steps / 2 and plan.arguments.lr_scheduler_type not in WITHOUT_WARM_UP:
        yield Finding(
            f"the warm-up takes {warm_up:,} of the {plan.steps:,} steps of the training", "lower training.warmup_steps"
        )
    if plan.recipe.model_from:
        return  # a little more training may be enough for a model that has learnt before
    if plan.epochs < 1:
        yield Finding(
            f"{plan.steps:,} steps see only a part of the data ({plan.steps_per_epoch:,} steps an epoch)",
            f"raise training.{key}",
        )
    elif plan.epochs < FEW_EPOCHS and plan.epochs * targets < ENOUGH_TARGET_TOKENS:
        yield Finding(
            f"{plan.steps:,} steps see {targets:,} target tokens {plan.epochs:.1f} times: little is learnt from so few",
            f"raise training.{key} ({math.ceil(FEW_EPOCHS * plan.steps_per_epoch):,} steps are {FEW_EPOCHS} epochs)",
        )


def _findings_of_recipe(plan: Plan) -> Iterator[Finding]:
    arguments, section = plan.arguments, plan.recipe.training
    if arguments.eval_strategy == "steps" and every(arguments.eval_steps, plan.steps) > plan.steps:
        yield Finding(
            f"there is one validation, at the end: training has {plan.steps:,} steps, training.eval_steps is "
            f"{arguments.eval_steps:,.0f}",
            "lower training.eval_steps",
        )
    if section.average_checkpoints > plan.checkpoints_to_average:
        there = f"{plan.checkpoints_to_average}{'' if section.average == 'last' else ' with a validation'}"
        yield Finding(
            f"{section.average_checkpoints} checkpoints are to be averaged, and there will be {there}",
            "raise training.save_total_limit, or lower training.save_steps or training.average_checkpoints",
        )
    search = plan.model.generation_config
    key = "max_new_tokens" if search.max_new_tokens else "max_length"
    longest = search.max_new_tokens or (search.max_length or math.inf) - 1
    too_long = float((np.concatenate(list(plan.unseen.values()))[:, 1] > longest).mean())
    if too_long > 0.01:
        yield Finding(
            f"{too_long:.0%} of the validation and test targets are longer than generation.{key} allows",
            f"raise generation.{key}",
        )


def _findings_of_room(plan: Plan, free: int) -> Iterator[Finding]:
    if plan.bytes_on_disk > free:
        yield Finding(
            f"the run needs {plan.bytes_on_disk / 2**20:,.0f} MiB on disk, and {free / 2**20:,.0f} MiB are free",
            "make room, or lower training.save_total_limit",
        )
    if plan.arguments.use_cpu:
        needed = peak_memory()
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > 0.9 * there:
            yield Finding(
                f"a step takes {needed / 2**20:,.0f} MiB of memory, and this machine has {there / 2**20:,.0f}",
                "lower training.max_tokens and raise training.gradient_accumulation_steps",
            )


def every(steps: float, total: int) -> int:
    """A number of steps, of which Trainer takes those below 1 for a share of all steps."""
    return math.ceil(steps * total) if steps < 1 else int(steps)

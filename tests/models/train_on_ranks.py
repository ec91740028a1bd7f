"""
What the tests run on several processes, written as a user would: `launch` starts this file with torchrun.

Every job loads the model of a folder, trains or runs it, and leaves there what it found, one file for each process.
All training takes the same steps: eight sentences each, in order, by plain gradient descent.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, GradientAccumulationPlugin
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
)
from transformers.distributed import DistributedConfig

from hf_vanilla import VanillaForConditionalGeneration

torch.set_num_threads(1)  # the other core has another test

STEPS, SENTENCES, RATE = 6, 8, 0.1
PLAIN_STEPS = {
    "max_steps": STEPS,
    "optim": "sgd",
    "learning_rate": RATE,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0,
    "train_sampling_strategy": "sequential",
}


def launch(job: str, folder: Path, processes: int = 2) -> list[dict[str, Any]]:
    """Run a job of this file on the model in `folder / "model"`; what it found, process by process."""
    import warm  # which is not where the ranks look for modules

    ranks = [f"--nproc_per_node={processes}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]  # 0: a free port
    command = [sys.executable, "-m", "torch.distributed.run", *ranks, __file__, job, str(folder)]
    with warm.Process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as torchrun:
        try:
            output, _ = torchrun.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            torchrun.terminate()  # unlike a kill, this ends its processes too
            output, _ = torchrun.communicate()
    assert torchrun.returncode == 0, output
    return [torch.load(folder / f"{job}-{rank}.pt") for rank in range(processes)]


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = ["<s>", "<pad>", "</s>", *map(str, range(3, 41))]
    specials = dict(zip(("bos_token", "pad_token", "eos_token"), words, strict=False))
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({word: index for index, word in enumerate(words)})), **specials
    )


def reversals(count: int) -> list[dict[str, list[int]]]:
    """Sentences of 2 to 7 tokens, and the same backwards."""
    dice = torch.Generator().manual_seed(3)
    draws = [torch.randint(3, 41, (7,), generator=dice).tolist() for _ in range(count)]
    sentences = [words[: 2 + words[0] % 6] for words in draws]
    return [{"input_ids": [*words, 2], "labels": [*words[::-1], 2]} for words in sentences]


def collator(model: VanillaForConditionalGeneration) -> DataCollatorForSeq2Seq:
    return DataCollatorForSeq2Seq(word_tokenizer(), model=model)


def make_trainer(
    model: VanillaForConditionalGeneration, folder: Path, kind: type[Trainer] = Seq2SeqTrainer, **arguments: Any
) -> Trainer:
    quiet = {"use_cpu": True, "logging_steps": 1, "disable_tqdm": True, "save_strategy": "no"}
    trainer = kind(
        model,
        Seq2SeqTrainingArguments(str(folder), **quiet | arguments),
        train_dataset=reversals(STEPS * SENTENCES),
        eval_dataset=reversals(STEPS),
        data_collator=collator(model),
        processing_class=word_tokenizer(),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def logged_losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def found(losses: list[float], model: nn.Module) -> dict[str, Any]:
    return {"losses": torch.tensor(losses), "weights": {name: whole(w) for name, w in model.state_dict().items()}}


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def batches(model: VanillaForConditionalGeneration) -> Iterator[dict[str, Tensor]]:
    data, collate = reversals(STEPS * SENTENCES), collator(model)
    return (collate(data[start : start + SENTENCES]) for start in range(0, len(data), SENTENCES))


def train_plainly(model: VanillaForConditionalGeneration) -> dict[str, Any]:
    """What all others are measured against: PyTorch alone, on one process, eight sentences at a time."""
    optimizer, losses = torch.optim.SGD(model.train().parameters(), RATE), []
    for batch in batches(model):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return found(losses, model)


def train_with_trainer(folder: Path, kind: type[Trainer], accumulated: int) -> dict[str, Any]:
    model = VanillaForConditionalGeneration.from_pretrained(folder / "model")
    size = SENTENCES // accumulated // int(os.environ["WORLD_SIZE"])
    parts = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
    trainer = make_trainer(model, folder, kind, **PLAIN_STEPS | parts)
    trainer.train()
    return found(logged_losses(trainer), model)


def train_with_accelerate(folder: Path) -> dict[str, Any]:
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
    )
    model = VanillaForConditionalGeneration.from_pretrained(folder / "model").train()
    size = SENTENCES // 2 // accelerator.num_processes
    loader = DataLoader(reversals(STEPS * SENTENCES), size, collate_fn=collator(model))
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), RATE), loader)
    losses, halves = [], iter(loader)
    for step in zip(halves, halves, strict=True):
        labels = accelerator.reduce(sum(half["labels"].ne(-100).sum() for half in step))
        parts = []
        for half in step:
            with accelerator.accumulate(model):
                loss = model(**half, num_items_in_batch=labels).loss
                # `loss` is a share of a sum; Accelerate divides by the two halves, DDP by the processes.
                accelerator.backward(loss * 2 * accelerator.num_processes)
                optimizer.step()
                optimizer.zero_grad()
            parts.append(loss.detach())
        losses.append(accelerator.gather(torch.stack(parts)).sum().item())
    return found(losses, accelerator.unwrap_model(model))


def train(folder: Path) -> dict[str, Any]:
    return {
        "Trainer": train_with_trainer(folder, Trainer, accumulated=1),
        "Seq2SeqTrainer, accumulating": train_with_trainer(folder, Seq2SeqTrainer, accumulated=2),
        "Accelerate, accumulating": train_with_accelerate(folder),
    }


def train_sharded(
    model: VanillaForConditionalGeneration, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """The steps of `train_plainly`, with half of every batch on each process; every second step skips the logits."""
    optimizer, losses = optimizer or torch.optim.SGD(model.parameters(), RATE), []
    model.train()
    for step, batch in enumerate(batches(model)):
        share = {name: tensor[dist.get_rank() :: dist.get_world_size()] for name, tensor in batch.items()}
        options = {"num_items_in_batch": batch["labels"].ne(-100).sum(), "skip_logits": step % 2 == 0}
        loss = model(**share, **options).loss
        (loss * dist.get_world_size()).backward()  # gradients are averaged over the processes
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss := loss.detach())
        losses.append(loss.item())
    return found(losses, model) | {
        "shards": [n for n, module in model.named_modules() if isinstance(module, FSDPModule)]
    }


def shard_by_layer(folder: Path) -> dict[str, Any]:
    dist.init_process_group("gloo")
    model = VanillaForConditionalGeneration.from_pretrained(folder / "model")
    for module in model.modules():
        if type(module).__name__ in model._no_split_modules:
            fully_shard(module)
    return train_sharded(fully_shard(model))


def shard_with_accelerate(folder: Path) -> dict[str, Any]:
    """FSDP2 as `accelerate launch` does it on GPUs. On CPUs it would take DDP without a word, if it were not told."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    accelerator.state._shared_state |= {"distributed_type": DistributedType.FSDP, "fsdp_plugin": plugin}
    model = VanillaForConditionalGeneration.from_pretrained(folder / "model")
    return train_sharded(*accelerator.prepare(model, torch.optim.SGD(model.parameters(), RATE)))


def shard_by_plan(folder: Path) -> dict[str, Any]:
    dist.init_process_group("gloo")
    config = DistributedConfig(fsdp_size=2)
    return train_sharded(VanillaForConditionalGeneration.from_pretrained(folder / "model", distributed_config=config))


def split_tensors(folder: Path) -> dict[str, Any]:
    dist.init_process_group("gloo")
    config = DistributedConfig(tp_size=2)
    model = VanillaForConditionalGeneration.from_pretrained(folder / "model", distributed_config=config).eval()
    batch = next(batches(model))
    with torch.no_grad():
        logits = whole(model(**batch).logits)
    generated = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=8)
    query = model.model.encoder.layers[0].self_attn.q_proj.weight.to_local().detach().clone()
    return {"logits": logits, "generated": generated, "query": query}


if __name__ == "__main__":
    job, folder = sys.argv[1], Path(sys.argv[2])
    jobs = (train, shard_by_layer, shard_with_accelerate, shard_by_plan, split_tensors)
    results = {function.__name__: function for function in jobs}[job](folder)
    torch.save(results, folder / f"{job}-{os.environ['RANK']}.pt")
    dist.destroy_process_group()

"""
Save a checkpoint with every call that changes files failing in its turn: the process ends there, or the disk is full.

After each, what `newest_whole_checkpoint` chooses must be there and whole, and the next save must succeed. Runs with
failing_calls.c loaded first. Prints what happened as JSON.
"""

import argparse
import ctypes
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from transformers import Seq2SeqTrainingArguments

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.batching import TokenBudgetBatches
from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.dataset import LengthLimits, PairCollator, TrainingPairs, encode_corpora
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.run_directory import step_of
from hf_vanilla.training.saving import SavingError, newest_whole_checkpoint, only_writer
from hf_vanilla.training.trainer import VanillaTrainer

END, FULL = 1, 2
ENDED = 99


def trainer_with_a_checkpoint(run: Path, limit: int) -> VanillaTrainer:
    """A trainer that has taken one step and saved it."""
    tokenizer = train_tokenizer(["a b c"], "character")
    pairs = [Pair(("a b",), "b c", str(number)) for number in range(4)]
    encoded, _ = encode_corpora([pairs], tokenizer, LengthLimits(9, 9), run.parent / "pairs.arrow")
    examples = TrainingPairs(encoded)
    batches = TokenBudgetBatches(examples.lengths, 64)
    config = VanillaConfig(
        vocab_size=len(tokenizer), d_model=8, num_heads=2, d_ff=8, encoder_layers=1, decoder_layers=1
    )
    trainer = VanillaTrainer(
        VanillaForConditionalGeneration(config),
        Seq2SeqTrainingArguments(
            str(run), max_steps=1, save_steps=1, save_total_limit=limit, use_cpu=True, disable_tqdm=True
        ),
        train_dataset=examples,
        data_collator=PairCollator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        train_batches=batches,
        eval_batches=batches,
        validate=lambda _: {},
    )
    trainer.train()
    return trainer


def save(trainer: VanillaTrainer, run: Path, failing_call: int = 0, how: int = 0) -> None:
    with only_writer(run):
        trainer.state.global_step = 2
        fail_at(run, failing_call, how)
        trainer._save_checkpoint(trainer.model, None)


def fail_at(folder: Path | str, call: int, how: int) -> None:
    ctypes.CDLL(None).fail_at(os.fsencode(folder), ctypes.c_long(call), how)


def in_a_child(trainer: VanillaTrainer, run: Path, call: int, how: int) -> tuple[int, str]:
    """What a save ends with whose `call`-th call fails: the exit code and the message."""
    said = run.parent / "said"
    said.write_text("")
    child = os.fork()
    if child == 0:
        try:
            save(trainer, run, call, how)
        except SavingError as error:
            fail_at("", 0, 0)
            said.write_text(str(error))
            os._exit(1)
        except BaseException as error:
            fail_at("", 0, 0)
            said.write_text(f"not explained: {error!r}")
            os._exit(2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.read_text()


def trial(how: int, limit: int, stride: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        run, pristine = Path(name) / "run", Path(name) / "pristine"
        trainer = trainer_with_a_checkpoint(run, limit)
        shutil.copytree(run, pristine)
        chosen: Counter[str] = Counter()
        call = 0
        while True:
            call += 1 if call < 40 else stride
            shutil.rmtree(run)
            shutil.copytree(pristine, run)
            code, said = in_a_child(trainer, run, call, how)
            whole = newest_whole_checkpoint(run)
            assert whole is not None, f"call {call}: no whole checkpoint is left"
            assert not list(run.glob("damaged-*")), f"call {call}: {whole} was chosen behind a damaged one"
            chosen[f"checkpoint-{step_of(whole)}"] += 1
            if code == 0:
                break
            assert code == (ENDED if how == END else 1), f"call {call} ended with {code}: {said}"
            if how == FULL:
                assert "MiB free" in said, said
                assert str(run) in said, said
            save(trainer, run)
            assert step_of(newest_whole_checkpoint(run)) == 2
        return {"calls": call, "chosen": dict(chosen)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=["end", "full"])
    parser.add_argument("--limit", type=int, default=1, help="how many checkpoints are kept")
    parser.add_argument("--stride", type=int, default=1, help="beyond the first calls, only every so many-th one fails")
    options = parser.parse_args()
    torch.set_num_threads(1)
    outcome = trial({"end": END, "full": FULL}[options.how], options.limit, options.stride)
    sys.stdout.write(json.dumps(outcome) + "\n")

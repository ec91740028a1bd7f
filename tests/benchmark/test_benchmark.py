"""Measurements side by side: fair rounds, right ratios, and peers that compute the same."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from torch import Tensor
from transformers import GenerationMixin, Seq2SeqTrainer

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.benchmark import beside, generation, growth, rounds, start, training
from hf_vanilla.benchmark.peak import operations_per_token
from hf_vanilla.benchmark.rounds import measured_rows, table
from hf_vanilla.interop.stock_classes import stock_model_like
from hf_vanilla.training.run import prepare

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
SMALL = ["data.train.size=300", "data.validation.size=4", "data.test.size=6", "model.d_model=16", "model.d_ff=16"]


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_peer_with_our_weights_has_our_logits(
    make_model: Callable[..., Model], ragged: dict[str, Tensor], norm_first: bool
) -> None:
    model = make_model(norm_first=norm_first, activation_function="relu")
    peer = stock_model_like(model)
    assert not isinstance(peer, Model)
    assert type(peer)._beam_search is GenerationMixin._beam_search
    inputs = {name: ragged[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        targets = model.prepare_decoder_input_ids_from_labels(ragged["labels"])
        expected = model(**inputs, decoder_input_ids=targets).logits
        torch.testing.assert_close(peer(**inputs, decoder_input_ids=targets).logits, expected, rtol=1e-4, atol=1e-4)
        options = {"num_beams": 3, "max_new_tokens": 8}
        assert torch.equal(peer.generate(**inputs, **options), model.generate(**inputs, **options))


def test_contenders_take_turns_and_ratios_are_those_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "in_a_fresh_process", lambda contender: contender())
    turns: list[str] = []

    def contender(name: str, *speeds: float) -> Callable[[], dict[str, float]]:
        remaining = iter(speeds)

        def measure() -> dict[str, float]:
            turns.append(name)
            return {"speed": next(remaining)}

        return measure

    rows = measured_rows("a race", {"ours": contender("ours", 10, 30, 40), "theirs": contender("theirs", 5, 10, 40)}, 3)
    assert turns == ["ours", "theirs"] * 3
    assert rows[0] | {"median": 30, "ratio lowest": 1, "ratio highest": 1} == rows[0]
    expected = {"median": 10, "lowest": 5, "highest": 40, "ratio median": 2, "ratio lowest": 1, "ratio highest": 3}
    assert rows[1] == {"what": "a race", "contender": "theirs", "figure": "speed"} | expected
    assert table(rows).splitlines()[-1] == "| a race | theirs | speed | 10 | 5 to 40 | 2.00 (1.00 to 3.00) |"


def test_nothing_to_divide_by_is_a_ratio_of_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "in_a_fresh_process", lambda contender: {"same": contender})
    rows = measured_rows("texts", {"ours": 3, "theirs": 0}, 1)
    assert [row["ratio median"] for row in rows] == [1, 0]


FORKING = """
import json, multiprocessing, sys
forking = multiprocessing.get_context("fork")  # contenders need not import PyTorch again
multiprocessing.get_context = lambda _: forking
"""


def succeed(code: str, *arguments: str) -> str:
    done = warm.run([sys.executable, "-c", FORKING + code, *arguments])
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(*command: str) -> list[dict[str, Any]]:
    code = "from hf_vanilla_cli import main; main(sys.argv[1:])"
    return json.loads(succeed(code, "benchmark", *command, "--rounds", "1", "--json"))


def test_a_contender_runs_in_a_process_that_has_seen_nothing_of_this_one() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert rounds.in_a_fresh_process(torch.get_default_dtype) == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_training_is_measured_against_transformers() -> None:
    sizes = ["training.max_tokens=300", "training.early_stopping_patience=2"]
    rows = measured("training", str(QUICKSTART), *SMALL, *sizes, "--steps", "5")
    assert len({row["contender"] for row in rows}) == 4
    assert {row["figure"] for row in rows} == {"tokens per second", "MiB", "share of peak"}
    assert all(0 < row["median"] < 1 for row in rows if row["figure"] == "share of peak")


@pytest.mark.parametrize("contender", [training.train_ours, training.train_theirs])
def test_the_speed_of_training_is_real_target_tokens_by_the_time_of_the_measured_steps(
    contender: Callable[[training.Job], dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by two seconds in each step, and full batches: 40 targets of 6 tokens."""
    (tmp_path / "pairs.tsv").write_text("".join(f"{number:03d}\t{number:05d}\n" for number in range(800)))
    corpus = f"{{file: {tmp_path / 'pairs.tsv'}, source: 0, target: 1}}"
    recipe = [f"data.{split}={corpus}" for split in ("train", "validation", "test")]
    recipe += ["tokenizer.kind=character", "data.max_source_length=8", "data.max_target_length=8"]
    job = training.Job(QUICKSTART, (*recipe, *SMALL[-2:], "training.max_tokens=240"), tmp_path, 5)
    prepare(job.load(), tmp_path)
    now, usual = [0.0], Seq2SeqTrainer.training_step

    def step(*arguments: Any, **options: Any) -> Tensor:
        now[0] += 2
        return usual(*arguments, **options)

    monkeypatch.setattr(Seq2SeqTrainer, "training_step", step)
    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(training, "highest_speed", lambda _: 1000.0)
    found = contender(job)
    assert found["tokens per second"] == pytest.approx(240 / 2)
    assert found["share of peak"] == pytest.approx(found["tokens per second"] / 1000)


@pytest.mark.parametrize(("implementation", "again"), [("eager", 0), ("sdpa", 1)])
def test_operations_are_those_of_the_matrix_products(
    make_model: Callable[..., Model], ragged: dict[str, Tensor], implementation: str, again: int
) -> None:
    model = make_model(attn_implementation=implementation).train()
    labels, sources = ragged["labels"], ragged["input_ids"]
    batch = {name: ragged[name] for name in ("input_ids", "attention_mask", "labels")}
    found = operations_per_token(model, [batch, batch]) * int((labels != -100).sum())
    config, targets = model.config, labels.numel()
    attention = config.num_heads * (config.d_kv + config.d_v)
    projections, scores = 2 * config.d_model * attention, attention
    feed_forward = 2 * config.d_model * config.d_ff
    of_source = config.encoder_layers * (projections + scores * sources.shape[1] + feed_forward)
    of_source += config.decoder_layers * config.d_model * attention  # keys and values for the decoder
    of_target = config.decoder_layers * (projections + scores * labels.shape[1] + feed_forward)
    of_target += config.decoder_layers * (config.d_model * attention + scores * sources.shape[1])
    of_target += config.d_model * config.vocab_size
    expected = 2 * 3 * (of_source * sources.numel() + of_target * targets)  # forward, and twice that backward
    length = sources.shape[1]  # fused attention computes the products of queries and keys once more
    scores = config.encoder_layers * sources.numel() * length
    scores += config.decoder_layers * targets * (length + labels.shape[1])
    assert found == expected + again * 2 * config.num_heads * config.d_kv * scores


def test_generation_is_measured_against_transformers(tmp_path: Path) -> None:
    steps = ["training.max_steps=2", "training.warmup_steps=1", "training.average_checkpoints=1"]
    steps += ["training.eval_steps=2", "training.save_steps=2"]
    train = ["train", str(QUICKSTART), *SMALL, *steps, "--output", str(tmp_path / "run")]
    succeed("from hf_vanilla_cli import main; main(sys.argv[1:])", *train)
    rows = measured("generation", str(tmp_path / "run"), "--sentences", "6")
    assert len(rows) == (3 * 3 + 4 + 3 + 3) * 2
    same = [row for row in rows if row["figure"] == "texts as the first" and "lines" not in row["what"]]
    assert [row["median"] for row in same if "given" not in row["contender"]] == [6] * (3 * 3 + 2 + 1)
    assert [row["median"] for row in same if "given" in row["contender"] and "greedy" in row["what"]] == [6] * 2


def test_prefixes_are_padded_where_their_lengths_differ() -> None:
    targets = [[0, 5, 6, 7, 8, 9], [0, 11, 12]]
    assert [generation.three_tokens(target) for target in targets] == [[0, 5, 6, 7], [0, 11, 12]]
    halves = [generation.first_half(target) for target in targets]
    assert halves == [[0, 5, 6, 7], [0, 11]]
    given = {name: rows.tolist() for name, rows in generation.padded_left(halves, padding=1).items()}
    assert given == {
        "decoder_input_ids": [[0, 5, 6, 7], [1, 1, 0, 11]],
        "decoder_attention_mask": [[1, 1, 1, 1], [0, 0, 1, 1]],
    }
    assert list(generation.padded_left(halves[:1], padding=1)) == ["decoder_input_ids"]


def test_trainings_at_once_are_measured_while_both_run(monkeypatch: pytest.MonkeyPatch) -> None:
    together, spins = threading.Barrier(2), []

    def speeds_of_ours(job: object) -> list[float]:
        spins.append(os.environ.get("GOMP_SPINCOUNT"))
        return [[1, 1, 20, 20, 20, 20, 1, 1], [1, 1, 10, 10, 10, 10, 99, 99]][together.wait(30)]

    monkeypatch.setattr(
        beside, "ProcessPoolExecutor", lambda number, _, **options: ThreadPoolExecutor(number, **options)
    )
    monkeypatch.setattr(beside, "speeds_of_ours", speeds_of_ours)
    monkeypatch.setattr(os, "environ", {"OMP_WAIT_POLICY": "passive"})
    assert beside.train_at_once("job", 2) == {"tokens per second": 30, "of the slowest": 10}
    assert "OMP_WAIT_POLICY" not in os.environ
    beside.train_at_once("job", 2, always_spins=True)
    assert spins == [None, None, "300000", "300000"]


def test_one_training_and_two_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(contender: partial) -> dict[str, float]:
        assert contender.func is beside.train_at_once
        job, number = contender.args
        return {"trainings": number, "steps": job.steps}

    monkeypatch.setattr(rounds, "in_a_fresh_process", measure)
    rows = beside.compare_beside(QUICKSTART, SMALL, steps=80, rounds=1)
    found = {(row["contender"], row["figure"]): row["median"] for row in rows}
    assert found["two at once", "trainings"] == found["two at once, threads always spin", "trainings"] == 2
    assert found["one alone", "trainings"] == found["one alone, threads always spin", "trainings"] == 1
    assert found["one alone", "steps"] == 80


def test_the_start_is_the_time_until_a_program_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "in_a_fresh_process", lambda contender: contender())
    programs = {"short": ["-c", "pass"], "long": ["-c", "import time; time.sleep(0.7)"]}
    monkeypatch.setattr(start, "PROGRAMS", programs)
    short, long = (row["median"] for row in start.compare_start(1))
    assert 0 < short < long
    assert 0.7 < long < 60
    with pytest.raises(subprocess.CalledProcessError):
        start.seconds_of(["-c", "raise SystemExit(1)"])


@pytest.mark.parametrize("program", start.PROGRAMS.values(), ids=start.PROGRAMS)
def test_programs_whose_start_is_measured_run(program: list[str]) -> None:
    assert warm.run([sys.executable, *program]).returncode == 0


def test_growth_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "TOKENS", 64)
    monkeypatch.setattr(growth, "SENTENCES", 2)
    short, long = growth.train(length=8, threads=1), growth.train(length=32, threads=1)
    assert set(short) == {"tokens per second", "GFLOP per second", "MiB"}
    operations = [figures["GFLOP per second"] / figures["tokens per second"] for figures in (short, long)]
    assert operations[0] < operations[1]  # for each token: attention looks at more
    assert growth.search(2)["tokens per second"] > 0
    data = json.loads(succeed("from hf_vanilla.benchmark import growth; print(json.dumps(growth.begin(300)))"))
    assert data["seconds, again"] < data["seconds, at first"]
    assert data["MiB, again"] > 100


def test_what_growth_is_measured_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "in_a_fresh_process", lambda contender: {"calls": 1})
    rows = growth.compare_growth(10**5, 1)
    contenders = {row["what"]: [] for row in rows}
    for row in rows:
        contenders[row["what"]].append(row["contender"])
    assert contenders["data, by pairs"] == ["10,000 pairs", "100,000 pairs"]
    assert contenders["search, by beams"][-1] == "16 beams"
    assert contenders["training, by length"][-1] == "1024 tokens"

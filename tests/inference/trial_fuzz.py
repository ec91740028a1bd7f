"""
Strange lines through the API and through stdin: as many come out as go in, in order, and memory stays bounded.

    python tests/inference/trial_fuzz.py --lines 100000

Not a test that runs by itself, because of its time; test_translator.py and test_translate_command.py have a short one.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from hf_vanilla import Translator, VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.errors import TextWarning
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.memory import peak_memory

SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", "<sep>", "<0x0A>", "<2de>"]
ENDS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
LONGEST = 1_000_000


def save_tiny_model(folder: Path) -> None:
    """One layer and 16 numbers wide: the work is in the lines, not in the model."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["a few words to begin with", "und ein paar Wörter"] * 5, "bpe", vocab_size=300)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1}
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **sizes))
    model.generation_config.update(max_length=8, num_beams=2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def strange_line(random: random.Random) -> str:
    """Text in which only a line feed is missing."""
    kind = random.random()
    if kind < 0.25:
        return "".join(character_of(random) for _ in range(random.randrange(40)))
    if kind < 0.35:
        return " ".join(random.choice(SPECIAL) for _ in range(random.randrange(1, 6)))
    if kind < 0.45:
        return "".join(random.choice(ENDS + "\0\t a") for _ in range(random.randrange(1, 9)))
    if kind < 0.55:
        return random.choice(" \t\u3000\xa0") * random.randrange(9)
    if kind < 0.6:
        return "e" + chr(random.randrange(0x300, 0x370)) * random.choice([1, 1000])
    if kind < 0.65:
        return "\u202e" + random.choice(["שלום", "سلام", "\u0644\u0627"]) * random.randrange(1, 5) + "\u202c"
    if kind < 0.7:
        return "\ufeff" + random.choice(["", "x", "\ud800", "a\udfff"])
    return " ".join(random.choice(["a", "few", "words", "Wörter", "12"]) for _ in range(random.randrange(12)))


def character_of(random: random.Random) -> str:
    """Of any plane, surrogates and unassigned ones included."""
    character = chr(random.choice([random.randrange(0x80), random.randrange(0x3000), random.randrange(0x110000)]))
    return " " if character == "\n" else character


def strange_lines(number: int, seed: int = 1) -> Iterator[str]:
    generator = random.Random(seed)  # noqa: S311 -- not for secrets
    for line in range(number):
        is_huge = line % 20_000 == 777
        yield generator.choice(["x", "x ", "é"]) * (LONGEST // 2) if is_huge else strange_line(generator)


def as_bytes(text: str, number: int) -> bytes:
    """UTF-8, with surrogates as they are, and now and then a byte that is none."""
    line = text.encode("utf-8", "surrogatepass").replace(b"\n", b" ")
    return line + b"\xff\xc3" if number % 50 == 3 else line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    number = parser.parse_args().lines
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_tiny_model(folder / "run")
        began = time.perf_counter()
        translator = Translator.from_pretrained(folder / "run")
        warnings.simplefilter("ignore", TextWarning)
        before = peak_memory()
        marks = {}
        for count, answer in enumerate(translator.translate(strange_lines(number)), 1):
            answer.encode()
            if count % (number // 10) == 0:
                marks[count] = round(peak_memory() / 2**20)
        assert count == number, f"{count} answers to {number} texts"
        print(f"API: {number} lines in {time.perf_counter() - began:.0f} s, peak MiB {before / 2**20:.0f} -> {marks}")
        began = time.perf_counter()
        with (folder / "in").open("wb") as file:
            file.writelines(as_bytes(text, count) + b"\n" for count, text in enumerate(strange_lines(number)))
        command = [sys.executable, "-m", "hf_vanilla", "translate", str(folder / "run")]
        with (folder / "in").open("rb") as source, (folder / "out").open("wb") as output:
            feeder = subprocess.Popen(["/bin/cat"], stdin=source, stdout=subprocess.PIPE)
            done = subprocess.run(command, stdin=feeder.stdout, stdout=output, stderr=subprocess.PIPE, check=False)
            feeder.wait()
        out = (folder / "out").read_bytes()
        assert done.returncode == 0, done.stderr
        assert out.count(b"\n") == number, "lines are missing, or too many"
        out.decode()
        empty = [not text.strip() for text in strange_lines(number)]
        lines = out.split(b"\n")[:-1]
        told = [place for place in range(number) if empty[place] and place % 50 != 3]
        assert not any(lines[place] for place in told), "a line of spaces has a translation: the order is wrong"
        print(f"stdin: {number} lines in {time.perf_counter() - began:.0f} s, order shown by {len(told)} empty lines")
        print(done.stderr.decode())


if __name__ == "__main__":
    main()

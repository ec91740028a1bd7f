"""
The peak memory of `hf-vanilla translate` for few lines and for many: their ratio should be about 1.

    python tests/inference/trial_memory.py --few 10000 --many 1000000

Not a test that runs by itself, because of its time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trial_fuzz import save_tiny_model

WORDS = ["a", "few", "words", "to", "begin", "with", "and", "some", "more", "of", "them"]


def peak_of(run: Path, number: int) -> int:
    """In MiB, of a process that translates so many lines."""
    with (run.parent / "in").open("w") as file:
        for line in range(number):
            file.write(" ".join(WORDS[line % 7 : 3 + line % 9]) + f" {line}\n")
    command = [sys.executable, "-m", "hf_vanilla", "translate", str(run), "--input", file.name, "--output", os.devnull]
    began = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    peak = used.ru_maxrss // 1024
    print(f"{number} lines: {peak} MiB, {time.perf_counter() - began:.0f} s", flush=True)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        save_tiny_model(run)
        few, many = (peak_of(run, number) for number in (arguments.few, arguments.many))
    print(f"ratio {many / few:.3f}")
    assert many <= 1.1 * few


if __name__ == "__main__":
    main()

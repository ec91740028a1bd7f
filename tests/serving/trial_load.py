"""
50 clients on loopback, again and again: does each get its own answer, does memory stay, and how fast is it?

    python tests/serving/trial_load.py RUN --rounds 14

A round is 50 clients with 20 requests each, every one with another text. The answers of the first round are compared
with those of `Translator.translate`, one text at a time, in float32; its throughput with that of all texts in one call.
"""

import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from hf_vanilla import Translator
from hf_vanilla.data.spoken import spoken_pairs

CLIENTS, REQUESTS = 50, 20


def texts_of(round_number: int) -> list[str]:
    """Spoken forms, single and several together, so that lengths differ."""
    said = [pair[0] for pair in spoken_pairs("train", CLIENTS * REQUESTS * 3)]
    chance = random.Random(round_number)  # noqa: S311
    return [" ".join(chance.sample(said, chance.choice((1, 1, 1, 2, 3)))) for _ in range(CLIENTS * REQUESTS)]


def ask(host: str, port: int, texts: Sequence[str]) -> list[str]:
    """The answers that one client gets, over one connection."""
    connection = http.client.HTTPConnection(host, port, timeout=300)
    answers = []
    for text in texts:
        body = json.dumps({"q": text, "source": "auto", "target": "en"})
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        answers.append(json.loads(connection.getresponse().read())["translatedText"])
    connection.close()
    return answers


def memory(host: str, port: int) -> float:
    """Megabytes of the server's process."""
    connection = http.client.HTTPConnection(host, port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    (found,) = re.findall(r"^hf_vanilla_resident_memory_bytes (\d+)$", text, flags=re.MULTILINE)
    return int(found) / 1e6


def compare(run: Path, texts: Sequence[str], answers: Sequence[str], seconds: float) -> None:
    translator = Translator.from_pretrained(run, dtype=torch.float32)
    translator.translate(list(texts[:100]))
    began = time.monotonic()
    translator.translate(list(texts))
    together = time.monotonic() - began
    began = time.monotonic()
    alone = [translator.translate(text) for text in texts]
    apart = time.monotonic() - began
    wrong = sum(found != expected for found, expected in zip(answers, alone, strict=True))
    number = len(texts)
    print(f"answers that are not those of `translate` alone: {wrong} of {number}")
    print(
        f"texts/s: served {number / seconds:.0f}, translate {number / together:.0f}, one at a time {number / apart:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=14)
    options = parser.parse_args()
    command = [sys.executable, "-m", "hf_vanilla", "serve", str(options.run), "--port", "0", "--dtype", "float32"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = re.search(r"http://([\d.]+):(\d+)", process.stderr.readline())
            assert address is not None
            host, port = address[1], int(address[2])
            print(f"memory at start: {memory(host, port):.0f} MB")
            for number in range(options.rounds):
                texts = texts_of(number)
                shares = [texts[client::CLIENTS] for client in range(CLIENTS)]
                began = time.monotonic()
                with ThreadPoolExecutor(CLIENTS) as pool:
                    found = list(pool.map(lambda share: ask(host, port, share), shares))
                seconds = time.monotonic() - began
                print(f"round {number}: {len(texts) / seconds:.0f} texts/s, {memory(host, port):.0f} MB", flush=True)
                if number == 0:
                    answers = [found[place % CLIENTS][place // CLIENTS] for place in range(len(texts))]
                    first = (texts, answers, seconds)
        finally:
            process.terminate()
    assert process.returncode == 0, process.returncode
    compare(options.run, *first)


if __name__ == "__main__":
    main()

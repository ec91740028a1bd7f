"""
How large the page of a model with 3 million parameters is, how soon Chromium has it ready, and what eight bits change.

    python tests/interop/trial_page.py ENGINE [RUN SOURCES]

ENGINE is the folder of the npm package onnxruntime-web. With RUN, a trained model, and SOURCES, a file with texts, it
also counts whose n-best lists differ: in float32 from those of `generate()`, and in eight bits. Screenshots are left in
the current directory.
"""

import random
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import torch
from playwright.sync_api import Page, sync_playwright

from hf_vanilla import Translator, VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference.onnx_search import Graphs, Search, search_batch
from hf_vanilla.interop.page_engine import FILES, add_engine
from hf_vanilla.interop.to_onnx import write_graphs
from hf_vanilla.interop.to_page import export, write_page

sys.path.extend(map(str, Path(__file__).parents[1:2]))
from chromium import chromium_of

WORDS = "two dogs are playing in the snow while a man and woman watch from behind green trees"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


def model_of_three_million() -> tuple[VanillaForConditionalGeneration, Any]:
    """With 6,000 tokens, most of which are nonsense."""
    torch.manual_seed(1)
    drawn = random.Random(1)  # noqa: S311
    nonsense = [" ".join("".join(drawn.choices("abcdefghijklmnop", k=5)) for _ in range(10)) for _ in range(2000)]
    tokenizer = train_tokenizer([WORDS, *nonsense], "bpe", 6000)
    sizes = {"d_model": 192, "d_ff": 768, "num_heads": 6, "encoder_layers": 2, "decoder_layers": 2}
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **sizes)).eval()
    model.generation_config.update(num_beams=4, max_length=64)
    return model, tokenizer


def seconds_until_ready(page: Page, address: str) -> tuple[float, float]:
    """By the clock, and of the processor in all of Chromium."""
    began, before = time.perf_counter(), cpu_seconds()
    page.goto(address)
    page.wait_for_selector("body[data-ready]", timeout=120_000)
    return time.perf_counter() - began, cpu_seconds() - before


def cpu_seconds() -> float:
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


def look(folder: Path, text: str, name: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_of(), args=["--no-sandbox"])
        for width, scheme in ((400, "light"), (1600, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.on("console", lambda message: print("console:", message.text))
            print("ready after seconds (clock, CPU): {:.2f} {:.2f}".format(*seconds_until_ready(page, address)))
            page.fill("#source-0", text)
            page.click("#translate")
            page.wait_for_selector("#results table", timeout=60_000)
            print(page.inner_text("#status"))
            page.screenshot(path=f"{name}-{width}-{scheme}.png", full_page=True)
            page.close()
        browser.close()
    server.shutdown()


def share_of_changed_lists(run: Path, sources: list[str], in_eight_bits: bool) -> float:
    """Of the 4 best, by their texts and order, against `generate()`."""
    translator = Translator.from_pretrained(run, dtype=torch.float32)
    wanted = translator.hypotheses(sources, num_beams=4, num_return_sequences=4)
    with tempfile.TemporaryDirectory() as folder:
        write_graphs(translator.model, Path(folder), in_eight_bits)
        options = {"num_beams": 4, "num_return_sequences": 4}
        search = Search.of(translator.model.generation_config.to_dict(), options)
        graphs, ids = Graphs(Path(folder), 1), translator.encode_batch(sources)
        found = [search_batch(graphs, [each], search)[0] for each in ids]
    changed = [
        [each.token_ids for each in theirs] != [each.token_ids for each in ours]
        for theirs, ours in zip(wanted, found, strict=True)
    ]
    best = [theirs[0].token_ids != ours[0].token_ids for theirs, ours in zip(wanted, found, strict=True)]
    print(f"eight bits: {in_eight_bits}; changed lists {sum(changed)}, best {sum(best)} of {len(changed)}")
    return sum(changed) / len(changed)


def main() -> None:
    engine = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "three-million"
        folder.mkdir()
        model, tokenizer = model_of_three_million()
        write_page(model, tokenizer, folder, "three-million")
        add_engine(folder, engine)
        size = sum(file.stat().st_size for file in folder.iterdir() if file.name not in FILES)
        print(f"parameters {model.num_parameters():,}; bytes beside the engine {size:,}")
        look(folder, "two dogs are playing in the snow", "page-three-million")
        if len(sys.argv) > 2:
            run, sources = Path(sys.argv[2]), Path(sys.argv[3]).read_text(encoding="utf-8").splitlines()
            for in_eight_bits in (False, True):
                share_of_changed_lists(run, sources, in_eight_bits)
            of_run = Path(temporary) / "run"
            of_run.mkdir()
            export(run, of_run, engine=engine)
            look(of_run, sources[0], "page-run")


if __name__ == "__main__":
    main()

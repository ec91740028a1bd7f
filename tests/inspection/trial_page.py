"""
Slow proofs about the page on attention: its size and the time until it can be used at 500 tokens, 12 layers and 16
heads; and, with a copy of axe-core (`npm pack axe-core`), that this finds nothing serious.

    python tests/inspection/trial_page.py [axe.min.js]
"""

import random
import sys
import tempfile
import time
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference.translator import Translator
from hf_vanilla.inspection.looking import look
from hf_vanilla.inspection.page import page_of

sys.path.append(str(Path(__file__).parents[1]))
from chromium import chromium_of

SCAN = "axe.run(document).then(found => found.violations.map(each => [each.impact, each.id, each.nodes.length]))"


def made(folder: Path, name: str, layers: int, heads: int, tokens: int) -> Path:
    words = [f"w{number}" for number in range(600)]
    tokenizer = train_tokenizer([" ".join(words)], "word", vocab_size=700)
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "num_heads": heads, "d_model": 256, "d_ff": 64}
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **sizes)).eval()
    with torch.no_grad():
        for weight in (weight for key, weight in model.named_parameters() if "q_proj.w" in key or "k_proj.w" in key):
            weight.mul_(4)  # so that attention is not uniform
    draw = random.Random(1)  # noqa: S311 - no secret
    texts = (" ".join(draw.choices(words, k=tokens - 1)) for _ in range(2))
    page = page_of(look(Translator(model, tokenizer), *texts), name)
    file = folder / f"{name}.html"
    file.write_text(page, encoding="utf-8")
    print(f"{name}: {len(page.encode()) / 1e6:.2f} MB")
    return file


def main() -> None:
    torch.manual_seed(0)
    axe = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else None
    folder = Path(tempfile.mkdtemp())
    binary = chromium_of()
    files = [made(folder, "small", 3, 4, 12), made(folder, "large", 12, 16, 500)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        for file in files:
            for width, scheme in ((1280, "light"), (400, "dark")):
                # A Content-Security-Policy that lets no script in would keep out axe-core, too.
                context = browser.new_context(
                    viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True, offline=True
                )
                tab = context.new_page()
                start = time.perf_counter()
                tab.goto(file.as_uri())
                tab.wait_for_selector("body[data-ready]", timeout=60_000)
                print(f"{file.stem} at {width} pixels, {scheme}: ready in {time.perf_counter() - start:.2f} s")
                if axe and file.stem == "small":
                    tab.evaluate(axe)
                    print("axe-core:", tab.evaluate(SCAN) or "nothing found")
                    tab.keyboard.press("1")
                    tab.keyboard.press("]")
                    print("axe-core, one head:", tab.evaluate(SCAN) or "nothing found")
                context.close()
        browser.close()


if __name__ == "__main__":
    main()

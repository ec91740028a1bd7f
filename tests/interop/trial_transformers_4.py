"""
Our tokenizers under transformers 4: the same ids, and the same texts of them.

    python tests/interop/trial_transformers_4.py

Makes an environment with "transformers<5", from the package index, in a temporary folder; about two minutes.
"""

import json
import subprocess
import sys
import tempfile
import venv
from itertools import product
from pathlib import Path

from hf_vanilla.data.existing_tokenizer import load_tokenizer, with_tokens
from hf_vanilla.data.tokenizer import Columns, train_tokenizer

TRAINED_ON = ["Ein Haus, zwei Häuser. 42", "a few words", "ABCDEFGHIJKLMNOPQRSTUVWXYZ bcghijklmnpqtuvxyz ,."] * 3
TEXTS = [
    *("Ein Haus", "EIN HÄUSCHEN", " two  spaces ", "", "42 7 1999", "ß 東京 \U0001f600", "</s> and <pad> written out"),
    *("<2de> Haus", "e\u0301 not composed", "line\nbreak", "tab\there", "\u200b", "don't can't"),
]

FOUR = """
import json, sys
import transformers
from transformers import AutoTokenizer
assert transformers.__version__.startswith("4."), transformers.__version__
folder, texts = sys.argv[1], json.loads(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(folder)
assert type(tokenizer).__name__ == "PreTrainedTokenizerFast", type(tokenizer)
ids = tokenizer(texts)["input_ids"]
print(json.dumps({
    "version": transformers.__version__, "ids": ids,
    "texts": [tokenizer.batch_decode(ids, skip_special_tokens=skip) for skip in (True, False)],
    "special": tokenizer.special_tokens_map, "size": len(tokenizer),
}))
"""


def found_here(tokenizer: object, texts: list[str]) -> dict[str, object]:
    ids = tokenizer(texts)["input_ids"]  # type: ignore[operator]
    decode = tokenizer.batch_decode  # type: ignore[attr-defined]
    return {
        "ids": ids,
        "texts": [decode(ids, skip_special_tokens=skip) for skip in (True, False)],
        "special": dict(tokenizer.special_tokens_map),  # type: ignore[attr-defined]
        "size": len(tokenizer),  # type: ignore[arg-type]
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        venv.create(folder / "four", with_pip=True)
        python = folder / "four" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "transformers<5"], check=True)
        made = {}
        for kind, lowercase in product(("bpe", "character", "word"), (False, True)):
            made[f"{kind}{' lowercase' * lowercase}"] = train_tokenizer(
                TRAINED_ON, kind, 400, lowercase, Columns((None, ";")), [";V"], ["<2de>"]
            )
        made["bpe"].save_pretrained(folder / "theirs")
        made["extended"] = with_tokens(load_tokenizer(folder / "theirs"), Columns((None, ";")), [";X"], [])
        for name, tokenizer in made.items():
            tokenizer.save_pretrained(folder / name)
            asked = [str(python), "-c", FOUR, str(folder / name), json.dumps(TEXTS)]
            done = subprocess.run(asked, capture_output=True, text=True, check=False, env={"HF_HUB_OFFLINE": "1"})
            if done.returncode:
                sys.exit(f"{name}: {done.stderr}")
            found = json.loads(done.stdout.splitlines()[-1])
            version = found.pop("version")
            expected = json.loads(json.dumps(found_here(tokenizer, TEXTS)))
            wrong = [key for key in expected if found[key] != expected[key]]
            if wrong:
                sys.exit(f"{name}: under {version} other {', '.join(f'{key}: {found[key]}' for key in wrong)}")
            print(
                f"{name}: the same {len(TEXTS)} texts under transformers {version}; {done.stderr.strip() or 'no word'}"
            )


if __name__ == "__main__":
    main()

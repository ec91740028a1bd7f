"""
Writes tests/interop/data/marian again: two tiny models of SentencePiece with a vocabulary as OPUS-MT has it, and the
ids that SentencePiece itself gives. Needs the package `sentencepiece`, which the tests do not.
"""

import json
import random
from pathlib import Path

import sentencepiece

FOLDER = Path(__file__).parent / "data" / "marian"
SOURCE = "the cat sat on a mat and the dog ran to the old barn where many rats had been all day long".split()  # noqa: SIM905
TARGET = "die katze saß auf der matte und der hund lief zur alten scheune wo viele ratten den ganzen tag waren".split()  # noqa: SIM905
LINES = [
    "the cat sat",
    "  the   dog  ran to\tthe barn ",
    "the Cat, 12 ﬁne rats…",
    "many rats 語 and 漢字 all day",
    ">>deu<< the old cat",
    "",
    "barnbarnthe mat—mat",
    "ｔｈｅ ｃａｔ ½ a²",  # noqa: RUF001
]


def train(words: list[str], name: str) -> sentencepiece.SentencePieceProcessor:
    generator = random.Random(5)  # noqa: S311
    lines = [" ".join(generator.choices(words, k=generator.randint(3, 9))) for _ in range(400)]
    text = FOLDER / f"{name}.txt"
    text.write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(FOLDER / name),
        vocab_size=38,
        model_type="unigram",
        # The usual rules have 240 kB; once is enough.
        normalization_rule_name="nmt_nfkc" if name == "source" else "identity",
    )
    text.unlink()
    (FOLDER / f"{name}.model").rename(FOLDER / f"{name}.spm")
    (FOLDER / f"{name}.vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / f"{name}.spm"))


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    source, target = train(SOURCE, "source"), train(TARGET, "target")
    # As marian-vocab makes it: by the pieces that were seen, so that some pieces of the models are missing.
    pieces = [model.id_to_piece(number) for model in (target, source) for number in range(3, len(model))]
    missing = [source.id_to_piece(number) for number in (5, 6, 9)]
    kept = [piece for piece in dict.fromkeys(pieces) if piece not in missing]
    tokens = ["</s>", "<unk>", *kept, ">>deu<<", "<pad>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (FOLDER / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    expected = []
    for line in LINES:
        code = [">>deu<<"] if line.startswith(">>deu<<") else []
        found = code + source.encode(line.removeprefix(">>deu<<"), out_type=str)
        expected.append([*(vocabulary.get(piece, -1 if piece in missing else 1) for piece in found), 0])
    german = "die katze lief zur alten scheune"
    ids = [vocabulary[piece] for piece in target.encode(german, out_type=str)]
    recorded = {"lines": LINES, "ids": expected, "missing": missing, "target": german, "target_ids": ids}
    (FOLDER / "ids.json").write_text(json.dumps(recorded, ensure_ascii=False))

"""
Compares all attention maps of a run as alignments, and says which place the map has that its training chose.

    python scripts/compare_alignments.py RUN --spoken                      (a run of configs/quickstart.yaml)
    python scripts/compare_alignments.py RUN --eflomal PROGRAM             (any run)

With --spoken the links to find are known. Otherwise there are none, and the run's validation pairs are compared with
the statistical aligner eflomal: links that it finds in both directions are sure, those in one are possible. eflomal is
on the package index (`pip install eflomal`, into an environment of its own: it is under the GPL, and no dependency);
PROGRAM is its `eflomal-align`.
"""

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hf_vanilla.data.spoken_alignments import spoken_alignments
from hf_vanilla.inference.alignment_choice import TextPair, errors_of_maps, in_units
from hf_vanilla.inference.alignments import Aligner, AlignmentSettings, AttentionMap, Link, error_rate
from hf_vanilla.inference.translator import Translator
from hf_vanilla.inference.word_statistics import Sentence, links_in_both_directions
from hf_vanilla.inspection.align import links_in
from hf_vanilla.training.preparation import read_prepared

Links = list[set[Link]]

SIDES = ("source", "target")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--spoken", action="store_true", help="Compare with the known links of the spoken forms.")
    parser.add_argument("--eflomal", default="eflomal-align", help="The program.")
    parser.add_argument("--pairs", type=int, default=300, help="How many pairs are compared.")
    given = parser.parse_args()
    translator = Translator.from_pretrained(given.run)
    settings = AlignmentSettings.of(translator.model)
    if given.spoken:
        pairs, sure, possible = known_links(given.pairs)
    else:
        pairs, sure, possible = links_of_eflomal(given.run, given.eflomal, given.pairs, settings)
    sources, targets = zip(*pairs, strict=True)
    encoded = Aligner(translator.model, translator.tokenizer, settings).encode(sources, targets)
    errors = errors_of_maps(translator.model, encoded, sure, possible)
    print(f"{len(pairs)} pairs, {sum(map(len, sure))} sure and {sum(map(len, possible))} possible links")
    print_table(errors, settings.attention)


def known_links(number: int) -> tuple[list[TextPair], Links, Links]:
    """Of test items of the quick start."""
    gold = list(spoken_alignments("test", number))
    pairs: list[TextPair] = [((spoken,), written) for spoken, written, _ in gold]
    return pairs, [set(links.sure) for *_, links in gold], [set(links.possible) for *_, links in gold]


def links_of_eflomal(
    run: Path, program: str, number: int, settings: AlignmentSettings
) -> tuple[list[TextPair], Links, Links]:
    """Of the first validation pairs. eflomal has all training pairs as well."""
    prepared = read_prepared(run)
    validation: list[TextPair] = list(zip(*(prepared.validation[side][:number] for side in SIDES), strict=True))
    training: list[TextPair] = list(zip(*(prepared.train[side][:] for side in SIDES), strict=True))
    sentences = list(in_units([*validation, *training], (settings.source_unit, settings.target_unit)))
    forward, backward = (links[: len(validation)] for links in align_with_eflomal(program, sentences))
    sure = [one & other for one, other in zip(forward, backward, strict=True)]
    possible = [one | other for one, other in zip(forward, backward, strict=True)]
    ours, _ = links_in_both_directions(sentences, len(validation))
    print(f"the statistical aligner of hf_vanilla, both directions: {100 * error_rate(ours, sure, possible):.1f} %")
    diagonal = [on_the_diagonal(*pair) for pair in sentences[: len(validation)]]
    print(f"the diagonal: {100 * error_rate(diagonal, sure, possible):.1f} %")
    return validation, sure, possible


def align_with_eflomal(program: str, sentences: Sequence[tuple[Sentence, Sentence]]) -> tuple[Links, Links]:
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / name for name in ("source", "target", "forward", "reverse")}
        for index, side in enumerate(SIDES):
            lines = (" ".join("".join(word.split()) or "_" for word in pair[index]) for pair in sentences)
            files[side].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        options = ("-s", "source"), ("-t", "target"), ("-f", "forward"), ("-r", "reverse")
        arguments = [argument for option, name in options for argument in (option, str(files[name]))]
        subprocess.run([program, *arguments], check=True)  # noqa: S603 - the program that the user names
        forward, reverse = (files[name].read_text().splitlines() for name in ("forward", "reverse"))
    return [links_in(line).sure for line in forward], [links_in(line).sure for line in reverse]


def on_the_diagonal(source: Sentence, target: Sentence) -> set[Link]:
    return {(min(len(source) - 1, round(place * len(source) / len(target))), place) for place in range(len(target))}


def print_table(errors: dict[AttentionMap, float], chosen: AttentionMap) -> None:
    """Error rates in percent: a line for each row and layer, a column for the mean and for each head."""
    places = sorted(errors, key=lambda attention: errors[attention])
    heads = sorted({attention.head for attention in errors}, key=lambda head: -1 if head is None else head)
    print("row     layer   mean  " + "  ".join(f"head {head + 1}" for head in heads if head is not None))
    for row in ("output", "input"):
        for layer in sorted({attention.layer for attention in errors}):
            found = [errors[AttentionMap(layer, head, row)] for head in heads]
            print(f"{row:<8}{layer + 1:>5}" + "".join(f"{100 * error:>8.2f}" for error in found))
    print(
        f"chosen at training: {chosen}: {100 * errors[chosen]:.2f} %, place {places.index(chosen) + 1} of {len(places)}"
    )
    print(f"the best: {places[0]}: {100 * errors[places[0]]:.2f} %")


if __name__ == "__main__":
    main()

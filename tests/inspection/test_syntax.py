"""Accuracies of heads for syntactic relations: sentences by hand, and a head of which one knows where it looks."""

from pathlib import Path

import numpy as np
import pytest
from positional import planted
from transformers import PreTrainedTokenizerFast

from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference.translator import Translator
from hf_vanilla.inference.units import spans_of
from hf_vanilla.inspection import syntax
from hf_vanilla.inspection.syntax import (
    CHILD,
    PARENT,
    Relation,
    Sentence,
    Word,
    read_conllu,
    relations_of,
    syntactic_heads,
    word_peaks,
)

ROWS = {
    "the dog sees a cat": "det:2 nsubj:3 root:0 det:5 obj:3",
    "dogs see small cats": "nsubj:2 root:0 amod:4 obj:2",
    "she gave him the old book": "nsubj:2 root:0 iobj:2 det:6 amod:6 obj:2",
}
"""Of each word its relation and the number of its head."""

EXPECTED = {  # relation, direction: how many, the most frequent distance, its share, share with the other end before
    ("det", PARENT): (3, 1, 2 / 3, 0),  # the dog, a cat: +1; the (old) book: +2
    ("det", CHILD): (3, -1, 2 / 3, 2 / 3),
    ("nsubj", PARENT): (3, 1, 1, 0),
    ("nsubj", CHILD): (3, -1, 1, 1),
    ("obj", PARENT): (3, -2, 2 / 3, 0),  # sees a cat, see small cats: -2; gave him the old book: -4
    ("obj", CHILD): (3, 2, 2 / 3, 0),
    ("amod", PARENT): (2, 1, 1, 0),
    ("amod", CHILD): (2, -1, 1, 1),
    ("iobj", PARENT): (1, -1, 1, 1),
    ("iobj", CHILD): (1, 1, 1, 0),
}


def conllu(rows: dict[str, str]) -> str:
    blocks = []
    for text, heads in rows.items():
        lines = [f"# text = {text}"]
        for number, (word, entry) in enumerate(zip(text.split(), heads.split(), strict=True), 1):
            relation, _, head = entry.rpartition(":")
            lines.append("\t".join([str(number), word, "_", "_", "_", "_", head, relation, "_", "_"]))
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "three.conllu"
    path.write_text(conllu(ROWS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    return train_tokenizer(ROWS, "word")


# --- A planted head ---------------------------------------------------------------------------------------------------


def test_a_head_that_looks_at_the_word_before_has_exactly_the_expected_accuracies(
    file: Path, words: PreTrainedTokenizerFast
) -> None:
    found = relations_of(Translator(planted(-1, vocab_size=len(words)), words), read_conllu(file))
    assert {(each.name, each.direction) for each in found} == EXPECTED.keys()
    for each in found:
        count, distance, baseline, accuracy = EXPECTED[each.name, each.direction]
        assert (each.count, each.distance, each.baseline) == (count, distance, baseline), each.name
        assert each.accuracy.shape == (1, 2)
        assert each.accuracy[0, 0] == accuracy, (each.name, each.direction)
    assert [each.count for each in found] == sorted((each.count for each in found), reverse=True)


def test_a_head_that_looks_at_the_next_word_has_the_other_direction(file: Path, words: PreTrainedTokenizerFast) -> None:
    each = relations_of(Translator(planted(1, len(words)), words), read_conllu(file))
    found = {(one.name, one.direction): one for one in each}
    assert found["det", PARENT].accuracy[0, 0] == 2 / 3
    assert found["det", CHILD].accuracy[0, 0] == 0
    assert found["nsubj", PARENT].accuracy[0, 0] == 1


def test_words_that_are_written_as_one_are_looked_for_where_they_are_written() -> None:
    """The word du is de and le, so that fou, the fourth word, is the third that is written. It looks at du."""
    words = (Word((0, 2), None, "root"), Word((3, 5), 3, "case"), Word((3, 5), 3, "det"), Word((6, 9), 1, "obl"))
    tokenizer = train_tokenizer(["va du fou"], "word")
    found = relations_of(Translator(planted(-1, len(tokenizer)), tokenizer), [Sentence("va du fou", words)])
    accuracies = {(each.name, each.direction): each.accuracy[0, 0] for each in found}
    assert accuracies["obl", PARENT] == 1
    assert accuracies["obl", CHILD] == 0
    assert accuracies["det", CHILD] == 1
    assert accuracies["case", PARENT] == 0


def test_a_sentence_that_would_be_cut_is_refused(file: Path, words: PreTrainedTokenizerFast) -> None:
    translator = Translator(planted(-1, len(words)), words, max_source_length=6)
    message = r"three\.conllu:15: the sentence has 7 tokens, more than the limit of 6: give a shorter one"
    with pytest.raises(InvalidDataError, match=message):
        relations_of(translator, read_conllu(file))


def test_only_a_head_that_beats_the_most_frequent_distance_is_called_syntactic(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy = np.array([[0.5, 0.59], [0.6001, 0.9]])
    relation = Relation("obj", CHILD, 20, 2, 0.5, accuracy)
    assert relation.finders == [(1, 0), (1, 1)]
    assert syntactic_heads([relation, relation]) == {(1, 0): [relation] * 2, (1, 1): [relation] * 2}
    assert Relation("obj", CHILD, 19, 2, 0.5, accuracy).finders == []
    monkeypatch.setattr(syntax, "MIN_COUNT", 19)
    assert Relation("obj", CHILD, 19, 2, 0.5, accuracy).finders == [(1, 0), (1, 1)]


# --- Words of several tokens ------------------------------------------------------------------------------------------


def test_keys_of_a_word_are_summed_and_its_queries_averaged() -> None:
    """The tokens are: the | dog s | </s>. To "the", those of "dogs" pay 0.2 and 0.8, and to "dogs" 0.8 and 0.1."""
    sentence = Sentence("the dogs", (Word((0, 3), 1, "det"), Word((4, 8), None, "root")))
    spans = [(0, 3), (3, 7), (7, 8), (0, 0)]
    of_head = np.array([[0.3, 0.2, 0.2, 0.3], [0.2, 0.4, 0.4, 0.0], [0.8, 0.05, 0.05, 0.1], [1, 0, 0, 0]])
    peaks, places = word_peaks(of_head[None, None], sentence, spans)
    assert places == [0, 1]
    assert peaks.tolist() == [[[1, 0]]]  # the: 0.3 against 0.2 + 0.2; dogs: 0.5 against 0.45
    other = of_head.copy()
    other[2] = [0.2, 0.3, 0.3, 0.2]
    assert word_peaks(other[None, None], sentence, spans)[0].tolist() == [[[1, 1]]]


def test_tokens_belong_to_words_by_their_characters() -> None:
    letters = train_tokenizer(ROWS, "character")
    sentence = Sentence("du fou", (Word((0, 2), 2, "case"), Word((0, 2), 2, "det"), Word((3, 6), None, "root")))
    spans = [*spans_of(letters, sentence.text, letters(sentence.text, add_special_tokens=False).input_ids), (0, 0)]
    maps = np.zeros((1, 1, len(spans), len(spans)))
    maps[..., :2, 4] = maps[..., 3:6, 0] = 1
    peaks, places = word_peaks(maps, sentence, spans)
    assert places == [0, 0, 1]  # both words that are written as one
    assert peaks.tolist() == [[[1, 0]]]


# --- The file ---------------------------------------------------------------------------------------------------------

RANGES = """# sent_id = 1
# text = Va au «parc».
1\tVa\taller\t_\t_\t_\t0\troot\t_\t_
2-3\tau\t_\t_\t_\t_\t_\t_\t_\t_
2\tà\t_\t_\t_\t_\t5\tcase\t_\t_
3\tle\t_\t_\t_\t_\t5\tdet:the\t_\t_
4\t«\t_\t_\t_\t_\t5\tpunct\t_\tSpaceAfter=No
4.1\tallant\t_\t_\t_\t_\t_\t_\t_\t_
5\tparc\t_\t_\t_\t_\t1\tobl\t_\tSpaceAfter=No
6\t»\t_\t_\t_\t_\t5\tpunct\t_\tSpaceAfter=No
7\t.\t_\t_\t_\t_\t1\tpunct\t_\t_
"""


@pytest.mark.parametrize("has_text", [True, False])
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_words_stand_where_they_are_written(has_text: bool, end: str, tmp_path: Path) -> None:
    file = tmp_path / "one.conllu"
    text = RANGES if has_text else RANGES.replace("# text = Va au «parc».\n", "")
    file.write_text(text + end, encoding="utf-8")
    (sentence,) = read_conllu(file)
    assert sentence.text == "Va au «parc»."
    written = [sentence.text[slice(*word.span)] for word in sentence.words]
    assert written == ["Va", "au", "au", "«", "parc", "»", "."]
    assert [word.head for word in sentence.words] == [None, 4, 4, 4, 0, 4, 0]
    assert sentence.words[2].relation == "det"  # without the language's own addition
    links = list(syntax.links_of(Sentence("au", (Word((0, 2), 1, "case"), Word((0, 2), None, "root")))))
    assert links == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no sentence"),
        ("1\tVa\n", "bad.conllu:1: has 2 columns"),
        (RANGES.replace("\t0\troot", "\t9\troot"), "bad.conllu:3: HEAD '9' is the number of no word"),
        (RANGES.replace("\tparc", "\tpark"), "bad.conllu:3: 'park' is not in the rest of its # text: 'parc».'"),
        (RANGES.replace("\n5\tparc", "\n6\tparc"), "bad.conllu:3: word 5 of the sentence has the ID '6'"),
        (RANGES.replace("2-3", "2-x"), "bad.conllu:3: 'x' is no number"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.conllu"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidDataError, match=message) as raised:
        read_conllu(file)
    assert "\n" not in str(raised.value)

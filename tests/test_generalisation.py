"""scripts/generalisation.py: what is held out is held out, and what is printed is what was measured."""

import importlib.util
import json
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("generalisation", ROOT / "scripts" / "generalisation.py")
script = importlib.util.module_from_spec(SPEC)
sys.modules["generalisation"] = script
SPEC.loader.exec_module(script)


def test_every_part_is_seen_and_no_held_out_combination_is() -> None:
    random, seen, days, months = Random(3), [], set(), set()  # noqa: S311
    while len(seen) < 3000:
        items = [script.item("train", random) for _ in range(random.choice(script.SHORT))]
        if not script.is_unseen(items):
            seen.append(items)
    pairs = {(a.kind, b.kind) for items in seen for a, b in pairwise(items)}
    assert pairs.isdisjoint(script.UNSEEN_NEIGHBOURS)
    assert len(pairs) == 12
    assert {a for a, _ in pairs} == {b for _, b in pairs} == set(script.KINDS)
    dates = {each.written[5:] for items in seen for each in items if each.kind == "date"}
    for written in dates:
        months.add(written[:2])
        days.add(written[3:])
        assert not script.is_held_out(script.date(2000, int(written[:2]), int(written[3:])))
    assert (len(months), len(days)) == (12, 31)
    held = sum(script.is_held_out(script.date.fromordinal(day)) for day in range(730120, 730120 + 366))
    assert 20 < held < 80


def test_lists_are_those_asked_for_again_and_again() -> None:
    unseen = list(script.lists("test", [2], 20, seed=1, unseen=True))
    assert unseen == list(script.lists("test", [2], 20, seed=1, unseen=True))
    seen = list(script.lists("test", [2], 20, seed=1, unseen=False))
    assert not set(seen) & set(unseen)
    assert {spoken.count(script.THEN) for spoken, _ in seen + unseen} == {1}
    assert len({spoken for spoken, _ in unseen}) == 20


@pytest.mark.parametrize(("what", "rows"), [("combinations", 8), ("length", 16)])
def test_a_very_short_one_leaves_its_tables(
    what: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "2", "--pairs", "60", "--tests", "2"]
    monkeypatch.setattr(sys, "argv", ["generalisation.py", what, str(tmp_path), *options])
    script.main()
    found = json.loads((tmp_path / "result.json").read_text())
    assert len(found) == rows
    assert all(row["pairs"] == 2 and row["loss"] > 0 and row["exact_match"] == 0 for row in found)
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "result.md").read_text()
    assert printed.count("\n") == rows + 2
    assert "<svg" in (tmp_path / "result.svg").read_text()
    monkeypatch.setattr(script, "subprocess", None)  # nothing is trained again
    script.main()
    assert json.loads((tmp_path / "result.json").read_text()) == found

"""All engines side by side: none that is there is missing, equal ones are found to be equal, and different ones not."""

import hashlib
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from computing import ENGINE, Handler
from inference.conftest import make_translator

from hf_vanilla.benchmark import engines, rounds
from hf_vanilla.benchmark.engines import BEST, LISTS, SECONDS, SIZE, SPEED, compare_engines, measure, sources_of
from hf_vanilla.inference.translator import Translator
from hf_vanilla.interop import page_engine
from hf_vanilla.interop.page_engine import FILES, PACKAGE
from hf_vanilla_cli import main

__all__ = ["make_translator"]

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
OURS = ["hf_vanilla, float32", "hf_vanilla, bfloat16"]
IN_FLOAT32 = {
    "CTranslate2": ("ctranslate2", "float32"),
    "onnxruntime": ("onnx", "float32"),
    "node": ("page", "float32"),
}
TEXTS = ["BADGE", "A FACE,", "LYX.", " ", "a few words", "KEB XL", "SAD"]
with_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to run JavaScript with")


@pytest.fixture
def run(make_translator: Callable[..., Translator], tmp_path: Path) -> Path:
    """A directory as a training leaves it, with a test set of which half the sources have a prefix."""
    translator, folder = make_translator(), tmp_path / "run"
    translator.model.save_pretrained(folder)
    translator.tokenizer.save_pretrained(folder)
    (folder / "notes.txt").write_text("no part of the model")
    (folder / "test.tsv").write_text("".join(f"{text}\tx\n" for text in TEXTS))
    recipe = yaml.safe_load(QUICKSTART.read_text())
    corpus = {"file": str(folder / "test.tsv"), "source": 0, "target": 1}
    recipe["data"]["test"] = [corpus | {"prefix": "X "}, corpus]
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    for module in (engines, rounds):
        monkeypatch.setattr(module, "in_a_fresh_process", lambda contender: contender())
    monkeypatch.setattr(engines, "bfloat16_is_fast", lambda use_cpu: True)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an engine for the page, which computes here; temporary folders are in `tmp_path / "temporary"`."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(engines.tempfile, "tempdir", str(temporary))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(temporary)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/compute"
    yield packed(tmp_path / "package", ENGINE.replace("'compute'", f"'{address}'"), monkeypatch)
    server.shutdown()
    server.server_close()


def packed(folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.mkdir()
    for name in FILES:
        content = engine if name == "ort.wasm.min.mjs" else f"this is {name}"
        (folder / name).write_text(content)
        monkeypatch.setitem(page_engine.FILES, name, hashlib.sha256(content.encode()).hexdigest())
    return folder


class NotInstalled:
    names = ("ctranslate2", "onnxruntime")

    def find_spec(self, name: str, *_: object) -> None:
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row["contender"], {})[row["figure"]] = row["median"]
    return found


@with_node
def test_engines_that_compute_the_same_are_all_there_and_find_the_same(
    run: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "EXPORTS", IN_FLOAT32)
    options = ["--sentences", "8", "--rounds", "1", "--engine", str(package), "--json"]
    done = CliRunner().invoke(main, ["benchmark", "engines", str(run), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    found = by_name(rows)
    assert list(found) == [*OURS, *IN_FLOAT32]
    assert all(set(figures) == {SECONDS, SPEED, BEST, LISTS, SIZE} for figures in found.values())
    for name in (OURS[0], *IN_FLOAT32):
        assert (name, found[name][BEST], found[name][LISTS]) == (name, 100, 100)
    assert {row["what"] for row in rows} == {"8 sentences, one thread"}
    assert "left out" not in done.stderr
    assert not list((package.parent / "temporary").iterdir())


def test_what_is_missing_is_left_out_by_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "bfloat16_is_fast", lambda use_cpu: False)
    for name in [each for each in sys.modules if each.split(".")[0] in NotInstalled.names]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NotInstalled(), *sys.meta_path])
    (tmp_path / "empty").mkdir()
    rows = compare_engines(run, 3, 1, tmp_path / "empty")
    assert list(by_name(rows)) == OURS[:1]
    said = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    missing = {line.split(": ")[1]: line for line in said}
    kinds = [f"{name}, {kind}" for name in ("CTranslate2", "onnxruntime") for kind in ("float32", "int8")]
    assert sorted(missing) == sorted([*OURS[1:], *kinds, "node, int8"])
    for name, line in missing.items():
        needed = name.split(", ")[0].lower() if name not in OURS else "processor"
        assert (PACKAGE if needed == "node" else needed) in line.split(": ", 2)[2]


@pytest.mark.parametrize("is_there", [False, pytest.param(True, marks=with_node)])
def test_a_page_that_node_cannot_run_is_left_out(
    is_there: bool, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "EXPORTS", {"node": ("page", "int8")})
    if not is_there:
        monkeypatch.setenv("PATH", str(tmp_path))
    package = packed(tmp_path / "package", "throw new TypeError('no wasm here');", monkeypatch)
    assert list(by_name(compare_engines(run, 3, 1, package))) == OURS
    why = "node could not translate with the page (TypeError: no wasm here)" if is_there else "node is not installed"
    assert f"left out: node: {why}" in capsys.readouterr().err


def test_an_engine_that_does_not_follow_the_generation_config_is_left_out(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "EXPORTS", {"CTranslate2": ("ctranslate2", "float32"), "page": ("page", "int8")})
    file = run / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"no_repeat_ngram_size": 2}))
    assert list(by_name(compare_engines(run, 3, 1))) == OURS
    said = capsys.readouterr().err
    assert "left out: CTranslate2: no_repeat_ngram_size (2) cannot be followed exactly" in said
    assert "left out: page: no_repeat_ngram_size (2) is not done" in said


def test_what_differs_is_counted(tmp_path: Path) -> None:
    def answer(seconds: float, best: str, lists: list[str]) -> Callable[[Any], Any]:
        return lambda sources: (seconds, list(best), [list(each) for each in lists])

    first = measure(answer(2.0, "abcd", ["ax", "bx", "cx", "dx"]), [], 7.5, tmp_path / "ours")
    assert first == {SECONDS: 2, SPEED: 2, BEST: 100, LISTS: 100, SIZE: 7.5}
    other = measure(answer(0.5, "abcX", ["ax", "xb", "cx", "Xx"]), [], 1.5, tmp_path / "ours")
    assert other == {SECONDS: 0.5, SPEED: 8, BEST: 75, LISTS: 50, SIZE: 1.5}
    assert measure(answer(1.0, "abcd", ["ax", "bx", "cx", "dy"]), [], 1, tmp_path / "ours")[LISTS] == 75


def test_a_search_has_the_beams_and_limits_of_the_run_and_one_thread(run: Path) -> None:
    translator = Translator.from_pretrained(run, dtype=torch.float32)
    sources = [("", [("BADGE",), ("LYX.",)]), ("X ", [("SAD",)])]
    torch.set_num_threads(2)
    seconds, best, lists = engines.search_here(run, sources, dtype=torch.float32)
    assert torch.get_num_threads() == 1
    assert seconds > 0
    wanted = [translator.hypotheses(text[0], num_return_sequences=3) for text in sources[0][1]]
    wanted += [translator.hypotheses("SAD", prefix="X ", num_return_sequences=3)]
    assert lists == [[each.text for each in row] for row in wanted]
    assert best == [row[0].text for row in wanted]


def test_only_the_best_translations_count_for_the_time(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on in each call: of two prefixes, and one more to warm up."""
    now = [0.0]

    def slower(seconds: float, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            now[0] += seconds
            return usual(*arguments, **options)

        return call

    for seconds, name in ((2, "translate"), (5, "hypotheses")):
        monkeypatch.setattr(Translator, name, slower(seconds, getattr(Translator, name)))
    monkeypatch.setattr(engines.time, "perf_counter", lambda: now[0])
    seconds, best, _ = engines.search_here(run, [("", [("BADGE",), ("LYX.",)]), ("X ", [("SAD",)])])
    assert (seconds, len(best)) == (4, 3)


def test_sources_are_grouped_by_prefix_and_empty_ones_left_out(run: Path) -> None:
    filled = [(text,) for text in TEXTS if text.strip()]
    assert sources_of(run, 9) == [("", filled[:3]), ("X ", filled)]


def test_sizes_are_those_of_the_files_that_are_needed(run: Path, tmp_path: Path) -> None:
    needed = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    package = tmp_path / "package"
    package.mkdir()
    found = engines.searches_of(run, tmp_path, package)
    assert [found[name][0] for name in OURS] == [sum((run / name).stat().st_size for name in needed)] * 2
    for kind in ("float32", "int8"):
        files = [path for path in (tmp_path / f"ctranslate2-{kind}").iterdir() if path.name != "manifest.json"]
        assert found[f"CTranslate2, {kind}"][0] == sum(path.stat().st_size for path in files)
    assert found["CTranslate2, int8"][0] < found["CTranslate2, float32"][0]


def test_the_engine_of_the_page_is_not_counted(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for name, content in (("small", "short"), ("large", "long " * 10_000)):
        (tmp_path / f"out-{name}").mkdir()
        package = packed(tmp_path / name, content, monkeypatch)
        sizes.append(engines.searches_of(run, tmp_path / f"out-{name}", package)["node, int8"][0])
    assert sizes[0] == sizes[1] > 0


def test_the_table_has_a_row_for_each_engine() -> None:
    def figures(seconds: float) -> dict[str, float]:
        return {SECONDS: seconds, SPEED: 1000 / seconds, BEST: 99.5, LISTS: 87.25, SIZE: 3.94}

    contenders = {"ours": lambda: figures(2.0), "theirs": lambda: figures(0.5)}
    lines = engines.table(rounds.measured_rows("1,000 sentences", contenders, 2)).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("| 1,000 sentences | MB | seconds | sentences per second | times as fast as the first |")
    assert lines[2] == "| ours | 3.9 | 2.00 | 500 | 1.00 (1.00 to 1.00) | 99.5 | 87.2 |"
    assert lines[3] == "| theirs | 3.9 | 0.50 | 2,000 | 4.00 (4.00 to 4.00) | 99.5 | 87.2 |"

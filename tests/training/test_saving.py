"""Whatever happens to a training or to its checkpoints, a whole one is there, is chosen, and what is not is named."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import warm
from trial_crashes import trainer_with_a_checkpoint

from hf_vanilla.manifest import MANIFEST
from hf_vanilla.training.checkpoints import DamagedCheckpointError, average_checkpoints, verify
from hf_vanilla.training.saving import (
    RunInUseError,
    SavingError,
    discard,
    keep_newest,
    newest_whole_checkpoint,
    only_writer,
    publish,
    seal,
    unfinished,
)
from hf_vanilla.training.trainer import VanillaTrainer

HERE = Path(__file__).parent


def outcome(*command: object, **environment: str) -> dict[str, object]:
    arguments = [sys.executable, *map(str, command)]
    if environment:
        options = {"capture_output": True, "text": True, "timeout": 500, "check": False}
        done = subprocess.run(arguments, env=os.environ | environment, **options)
    else:
        done = warm.run(arguments, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_training_that_was_killed_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    found = outcome(HERE / "trial_kills.py", tmp_path, "--kills", 5, "--inside-saves", 2)
    assert found["kills"] >= 5
    assert found["inside a save"] >= 2


@pytest.fixture(scope="module")
def failing_calls(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: calls of the system are made to fail by a library of some lines of C")
    library = tmp_path_factory.mktemp("library") / "failing_calls.so"
    source = HERE / "failing_calls.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    return str(library)


@pytest.mark.parametrize(("how", "limit"), [("end", 1), ("end", 2), ("full", 1)])
def test_every_call_of_a_save_may_fail(failing_calls: str, how: str, limit: int) -> None:
    found = outcome(HERE / "trial_crashes.py", how, "--limit", limit, LD_PRELOAD=failing_calls)
    assert found["calls"] > 60
    assert set(found["chosen"]) == {"checkpoint-1", "checkpoint-2"}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> VanillaTrainer:
    return trainer_with_a_checkpoint(tmp_path_factory.mktemp("trained") / "run", limit=5)


@pytest.fixture
def run(trainer: VanillaTrainer, tmp_path: Path) -> Path:
    """Real checkpoints of steps 1 and 2."""
    trainer.state.global_step = 2
    trainer._save_checkpoint(trainer.model, None)
    shutil.copytree(trainer.run, tmp_path / "run")
    return tmp_path / "run"


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << (place % 8)
    file.write_bytes(content)


def flip_some_byte(file: Path) -> None:
    flip(file, random.Random(file.name).randrange(file.stat().st_size))  # noqa: S311


def flip_the_first_byte(file: Path) -> None:
    flip(file, 0)


def flip_the_last_byte(file: Path) -> None:
    flip(file, file.stat().st_size - 1)


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def take_that_of_step_1(file: Path) -> None:
    other = file.parents[1] / "checkpoint-1" / file.name
    if other.read_bytes() == file.read_bytes():
        flip_some_byte(file)  # the same at every step: there is no other
    else:
        shutil.copy(other, file)


DAMAGES = [
    flip_some_byte,
    flip_the_first_byte,
    flip_the_last_byte,
    shorten,
    empty,
    lengthen,
    Path.unlink,
    take_that_of_step_1,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_to_any_file_is_found_and_the_checkpoint_before_is_taken(
    run: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pristine = run.with_name("pristine")
    run.rename(pristine)
    names = [path.name for path in (pristine / "checkpoint-2").iterdir()]
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", MANIFEST} <= set(names)
    for name in names:
        shutil.copytree(pristine, run)
        damage(run / "checkpoint-2" / name)
        assert newest_whole_checkpoint(run) == run / "checkpoint-1"
        message = capsys.readouterr().err
        assert name in message
        assert "checkpoint-2 is passed over and now called damaged-checkpoint-2" in message
        shutil.rmtree(run)


def test_every_byte_of_a_manifest_counts(run: Path) -> None:
    manifest = run / "checkpoint-2" / MANIFEST
    whole = manifest.read_bytes()
    for place in range(len(whole)):
        flip(manifest, place)
        with pytest.raises(DamagedCheckpointError, match=MANIFEST):
            verify(run / "checkpoint-2")
        manifest.write_bytes(whole)
    verify(run / "checkpoint-2")


def test_a_checkpoint_under_the_name_of_another_step_is_not_taken(run: Path) -> None:
    (run / "checkpoint-2").rename(run / "checkpoint-3")
    with pytest.raises(DamagedCheckpointError, match=r"checkpoint-3/manifest\.json is of step 2"):
        verify(run / "checkpoint-3")


def test_without_any_whole_checkpoint_there_is_none(run: Path) -> None:
    for step in (1, 2):
        flip_some_byte(run / f"checkpoint-{step}" / "model.safetensors")
    assert newest_whole_checkpoint(run) is None
    assert {path.name for path in run.glob("*-[12]")} == {"damaged-checkpoint-1", "damaged-checkpoint-2"}


def small_checkpoint(run: Path, step: int) -> Path:
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "file").write_text(str(step))
    seal(folder, step)
    return folder


def test_a_new_checkpoint_replaces_a_damaged_one_of_its_name(tmp_path: Path) -> None:
    (small_checkpoint(tmp_path, 3) / "file").write_text("damaged")
    publish(small_checkpoint(unfinished(tmp_path), 3), tmp_path / "checkpoint-3")
    verify(tmp_path / "checkpoint-3")
    assert (tmp_path / "checkpoint-3" / "file").read_text() == "3"


@pytest.mark.parametrize(("limit", "kept"), [(None, [1, 2, 3, 10]), (4, [1, 2, 3, 10]), (2, [1, 3, 10]), (1, [1, 10])])
def test_the_oldest_checkpoints_are_discarded_but_for_the_protected(
    tmp_path: Path, limit: int | None, kept: list[int]
) -> None:
    checkpoints = [small_checkpoint(tmp_path, step) for step in (1, 2, 3, 10)]
    keep_newest(tmp_path, limit, {checkpoints[0], checkpoints[-1]})
    assert sorted(int(path.name[11:]) for path in tmp_path.glob("checkpoint-*")) == kept


def test_discarding_goes_on_where_an_earlier_one_was_stopped(tmp_path: Path) -> None:
    (unfinished(tmp_path) / "discarded-checkpoint-1" / "folder").mkdir(parents=True)
    discard(small_checkpoint(tmp_path, 1))
    assert list(unfinished(tmp_path).iterdir()) == []


def test_a_limit_on_file_sizes_stops_a_save_at_every_file_and_harms_nothing(trainer: VanillaTrainer, run: Path) -> None:
    """As a full disk would, by the system itself."""
    sizes = sorted({path.stat().st_size for path in (run / "checkpoint-2").iterdir()})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    trainer.state.global_step = 7
    try:
        for size in sizes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, before[1]))
            with pytest.raises(SavingError, match=r"step 7 could not be written to .*MiB free.*is still good"):
                trainer._save_checkpoint(trainer.model, None)
            assert not (trainer.run / "checkpoint-7").exists()
            verify(trainer.run / "checkpoint-2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(sizes) > 6


def test_a_run_directory_that_is_gone_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    trainer = trainer_with_a_checkpoint(tmp_path / "run", limit=5)
    shutil.rmtree(trainer.run)
    trainer.run.write_text("a file is in its place")
    with pytest.raises(SavingError, match=rf"could not be written to {trainer.run}.*there is no earlier checkpoint"):
        trainer._save_checkpoint(trainer.model, None)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Where any user may look."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def without_the_rights_of_root() -> Iterator[None]:
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_run_directory_that_became_read_only_is_named_and_stays_as_it_was(open_folder: Path) -> None:
    trainer = trainer_with_a_checkpoint(open_folder / "run", limit=5)
    trainer.state.global_step = 2
    shutil.rmtree(unfinished(trainer.run), ignore_errors=True)
    trainer.run.chmod(0o555)
    before = sorted(trainer.run.rglob("*"))
    with without_the_rights_of_root(), pytest.raises(SavingError) as failure:
        trainer._save_checkpoint(trainer.model, None)
    trainer.run.chmod(0o755)
    message = f"the checkpoint of step 2 could not be written to {unfinished(trainer.run)}"
    assert str(failure.value).startswith(message)
    assert "Permission denied" in str(failure.value)
    assert "checkpoint-1 is still good" in str(failure.value)
    assert sorted(trainer.run.rglob("*")) == before
    assert newest_whole_checkpoint(trainer.run) == trainer.run / "checkpoint-1"


def test_a_run_directory_that_is_removed_while_a_checkpoint_is_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_with_a_checkpoint(tmp_path / "run", limit=5)

    def removed(folder: Path, step: int) -> None:
        shutil.rmtree(trainer.run)
        seal(folder, step)

    monkeypatch.setattr("hf_vanilla.training.trainer.seal", removed)
    with pytest.raises(SavingError, match=rf"could not be written to {trainer.run}.*there is no earlier checkpoint"):
        trainer._save_checkpoint(trainer.model, None)


def test_two_trainings_cannot_write_one_run(tmp_path: Path) -> None:
    hold = (
        "import sys, pathlib; from hf_vanilla.training.saving import only_writer\n"
        "with only_writer(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with warm.Process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunInUseError, match=f"is being written by process {other.pid} on"), only_writer(tmp_path):
            pass
        other.kill()
    with only_writer(tmp_path):
        pass


def test_two_threads_cannot_write_one_run(tmp_path: Path) -> None:
    """Locks of files belong to a process: a second one would be granted, and its end would end the first."""
    refused = pytest.raises(RunInUseError, match="by another thread of this process")
    with only_writer(tmp_path), refused, only_writer(tmp_path):
        pass
    with pytest.raises(KeyError), only_writer(tmp_path):
        raise KeyError
    with only_writer(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_written_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    monkeypatch.setattr("fcntl.lockf", without_support(number))
    with only_writer(tmp_path):
        (warning,) = capsys.readouterr().err.splitlines()
    assert "is on a file system without locks" in warning


def test_other_errors_of_locks_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.lockf", without_support(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"), only_writer(tmp_path):
        pass


def test_a_file_system_that_cannot_sync_folders_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", without_support(errno.EINVAL))
    verify(small_checkpoint(tmp_path, 1))


def without_support(number: int) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(("umask", "mode"), [(0o027, "0o640"), (0o002, "0o664")])
def test_every_file_of_a_run_has_the_mode_that_the_umask_gives(tmp_path: Path, umask: int, mode: str) -> None:
    before = os.umask(umask)
    try:
        trainer = trainer_with_a_checkpoint(tmp_path / "run", limit=5)
        trainer.save_model()
        average_checkpoints(trainer.run, 1, "last", "loss", False)
        trainer.save_model()
    finally:
        os.umask(before)
    files = {path: oct(path.stat().st_mode & 0o777) for path in trainer.run.rglob("*") if path.is_file()}
    assert {"model.safetensors", "tokenizer.json", "optimizer.pt"} <= {path.name for path in files}
    assert set(files.values()) == {mode}, files


def test_what_was_left_unfinished_is_removed_at_the_next_start(tmp_path: Path) -> None:
    small_checkpoint(unfinished(tmp_path), 4)
    with only_writer(tmp_path):
        assert not unfinished(tmp_path).exists()

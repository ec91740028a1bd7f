"""Processes that the server forks are as if Python had started them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm


def test_a_command_has_its_own_arguments_folder_environment_and_streams(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv, os.getcwd(), os.environ['KEY'], input()); print('error', file=sys.stderr)"
    environment = os.environ | {"KEY": "value"}
    done = warm.run([sys.executable, "-c", code, "-u", "b"], "typed\n", cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"['-c', '-u', 'b'] {tmp_path} value typed\n", "error\n")
    assert "KEY" not in os.environ


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, ""),
        ("atexit.register(print, 'at exit', file=sys.stderr)", 0, "at exit\n"),
    ],
)
def test_a_command_ends_as_it_would_in_an_interpreter_of_its_own(end: str, code: int, said: str) -> None:
    done = warm.run([sys.executable, "-c", f"import atexit, os, signal, sys; {end}"])
    assert done.returncode == code
    assert said in done.stderr


def test_scripts_and_modules_find_what_lies_beside_them(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("print(__name__)")
    (tmp_path / "script.py").write_text("import beside; print(__name__, __file__)")
    done = warm.run([sys.executable, str(tmp_path / "script.py")])
    assert done.stdout == f"beside\n__main__ {tmp_path / 'script.py'}\n"
    assert warm.run([sys.executable, "-m", "beside"], cwd=tmp_path).stdout == "__main__\n"


def test_processes_below_a_process_are_forked_by_the_same_server() -> None:
    code = f"import sys; sys.path.append({str(Path(warm.__file__).parent)!r}); import warm; print(warm.server())"
    assert warm.run([sys.executable, "-c", code]).stdout == f"{warm.server()}\n"


def test_a_process_can_be_watched_and_killed() -> None:
    command = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]
    with warm.Process(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "here\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.terminate()
    assert process.returncode == -signal.SIGTERM

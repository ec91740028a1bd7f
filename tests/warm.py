"""
Python commands in processes of their own that need not import PyTorch and transformers first, which takes 3 seconds.

A server imports everything once and then forks for each command: `Process([sys.executable, "-m", "hf_vanilla", "env"])`
does what `Popen` would, with arguments, folder, environment and streams of its own. The ranks that torchrun and
accelerate start below such a command are forked, too.

Not for checks of what is imported, or of an environment that counts when it is: those need an interpreter of their own.
"""

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

ADDRESS = "TESTS_WARM_SERVER"
IMPORTED = (
    *("hf_vanilla.workflow", "hf_vanilla.training.run", "hf_vanilla.benchmark.training", "matplotlib.pyplot"),
    *("accelerate.commands.launch", "torch.distributed.run", "torch.distributed.fsdp", "torch.distributed.tensor"),
)


class Process:
    """The part of `subprocess.Popen` that tests and torchrun use, of a process that the server has forked."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        start_new_session: bool = False,
    ):
        assert args[0] == sys.executable, args
        self.args, self.returncode = args, None
        mine: list[IO[str] | None] = []
        theirs: list[int] = []
        for number, stream in enumerate((stdin, stdout, stderr)):
            if stream == subprocess.PIPE:
                reader, writer = os.pipe()
                theirs.append(writer if number else reader)
                mine.append(os.fdopen(reader) if number else os.fdopen(writer, "w"))
            else:
                mine.append(None)
                chosen = theirs[1] if stream == subprocess.STDOUT else number if stream is None else stream
                theirs.append(os.dup(chosen if isinstance(chosen, int) else chosen.fileno()))
        self.stdin, self.stdout, self.stderr = mine
        self.keeper = socket.socket(socket.AF_UNIX)
        self.keeper.connect(address := server())
        request = {
            "arguments": list(map(str, args[1:])),
            "folder": str(cwd or Path.cwd()),
            "environment": {**(os.environ if env is None else env), ADDRESS: address},
            "new session": start_new_session,
        }
        socket.send_fds(self.keeper, [b"\0"], theirs)
        self.keeper.sendall(json.dumps(request).encode() + b"\n")
        for descriptor in theirs:
            os.close(descriptor)
        self.answers = self.keeper.makefile()
        self.pid = int(self.answers.readline())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self.keeper], [], [], 0)[0]:
            self.returncode = int(self.answers.readline())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self.keeper], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.poll()

    def communicate(self, input: str = "", timeout: float | None = None) -> tuple[str, str]:  # noqa: A002 -- as Popen's
        said: dict[IO[str] | None, str] = {None: ""}
        readers = [
            threading.Thread(target=lambda stream=stream: said.update({stream: stream.read()}), daemon=True)
            for stream in (self.stdout, self.stderr)
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            self.stdin.write(input)
            self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return said[self.stdout], said[self.stderr]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


def run(
    command: Sequence[str],
    input: str = "",  # noqa: A002 -- as subprocess.run's
    timeout: float = 300,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run(command, input=input, capture_output=True, text=True, check=False)`."""
    process = Process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    try:
        said = process.communicate(input, timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(command, process.returncode, *said)


@cache
def server() -> str:
    """Its address. It ends with the process that first asks for it; processes that it forks find the same one."""
    if ADDRESS in os.environ:
        return os.environ[ADDRESS]
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    address = str(Path(folder.name) / "socket")
    serving = subprocess.Popen(
        [sys.executable, __file__, "serve", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {ADDRESS: address},
    )

    def end() -> None:
        serving.stdin.close()
        serving.wait()
        folder.cleanup()

    atexit.register(end)
    assert serving.stdout.readline() == b"ready\n"
    return address


def serve(address: str) -> None:
    """Fork a keeper for each connection, until stdin is closed."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        os.write(1, b"ready\n")
        while True:
            asking, _, _ = select.select([listener, 0], [], [], 0.2)
            if 0 in asking:
                return
            if listener in asking:
                connection, _ = listener.accept()
                if os.fork() == 0:
                    listener.close()
                    keep(connection)
                connection.close()
            reap()


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def keep(connection: socket.socket) -> None:
    """Fork the command, say its process id, wait for its end, say its code."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    request = json.loads(connection.makefile().readline())
    process = os.fork()
    if process == 0:
        connection.close()
        become(request, streams)
        return_from_main(request["arguments"])
    for descriptor in streams:
        os.close(descriptor)
    try:
        connection.sendall(b"%d\n" % process)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    except BrokenPipeError:  # nobody waits for it any more
        pass
    os._exit(0)


def become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """What the system does for a new process, and Python before its first line."""
    if request["new session"]:
        os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    sys.modules["numpy"].random.seed()


def return_from_main(arguments: list[str]) -> None:
    """Run what stands behind `python`, and end as it would."""
    code = 1
    try:
        execute(arguments)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        else:
            code = int(end.code or 0)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def execute(arguments: list[str]) -> None:
    option, *rest = arguments = arguments[arguments[0] == "-u" :]
    if option == "-m":
        sys.argv[:], sys.path[:0] = rest, [str(Path.cwd())]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.argv[:], sys.path[:0] = ["-c", *rest[1:]], [""]
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__ | {"__name__": "__main__"})  # noqa: S102
    else:
        sys.argv[:], sys.path[:0] = arguments, [str(Path(option).parent)]
        runpy.run_path(option, run_name="__main__")


def start_rank(args: Sequence[str], **options: Any) -> Any:
    """What torchrun calls in place of Popen."""
    return (Process if args[0] == sys.executable else subprocess.Popen)(args, **options)


def import_and_serve(address: str) -> None:
    sys.path.pop(0)
    for module in IMPORTED:
        importlib.import_module(module)
    ranks = importlib.import_module("torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler")
    assert ranks.Popen is subprocess.Popen
    ranks.Popen = start_rank
    gc.collect()
    gc.freeze()  # else each process would look through all that was imported
    serve(address)


if __name__ == "__main__":
    act, *arguments = sys.argv[1:]
    if act == "serve":
        import_and_serve(*arguments)
    else:  # for commands of a shell: `python warm.py run python -m hf_vanilla env`
        sys.exit(Process(arguments).wait())

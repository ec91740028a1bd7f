"""Lines of several clients that are translated together: a bounded queue, and one thread that computes."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread

from ..inference.translator import Hypothesis

MAX_LINES = 64  # of a batch: who comes next waits for no more than these
SECONDS_TO_COME_BACK = 0.002  # for each client: so long their answers and next requests take, with some to spare

Found = list[Hypothesis] | Exception
"""The best translations of a line, or why it has none."""


@dataclass(frozen=True)
class Wanted:
    """
    What a client wants of each line.

    Args:
        number: How many translations.
        has_attention: Whether each of them is to say where it looked.
    """

    number: int = 1
    has_attention: bool = False


Translate = Callable[[Sequence[str], Wanted], list[Found]]


class QueueFullError(Exception):
    """As many requests wait as may."""


class ClosedError(Exception):
    """The server is stopping."""


@dataclass(eq=False)
class Job:
    """
    The lines of one request.

    Args:
        deadline: When it is too late to begin, by the batcher's clock.
        result: For each line its translations.
        is_over: Whether nobody waits for it any more: it is answered, or given up.
    """

    lines: Sequence[str]
    wanted: Wanted
    deadline: float
    result: "Future[list[list[Hypothesis]]]" = field(default_factory=Future)
    found: list[Found] = field(default_factory=list)
    taken: int = 0
    is_over: bool = False


class Batcher:
    """
    Translates jobs in one thread of its own, several at a time.

    Clients that have their answers often ask again at once. A batch therefore waits a moment for them: otherwise they
    miss it, and come to take turns with those that waited meanwhile, in two batches of half the size, which cost more.
    Who is alone does not wait.

    A job that nobody waits for any more is not translated: who waits says so with `give_up`, and a job whose time is
    over is dropped by the thread itself when its turn comes, whether or not anybody has said so by then.

    Args:
        clock: In seconds, as the deadlines of jobs.
        patience: Seconds for each client that may come back, for which the next batch waits at most.
    """

    def __init__(
        self,
        translate: Translate,
        max_waiting: int,
        clock: Callable[[], float] = time.monotonic,
        patience: float = SECONDS_TO_COME_BACK,
    ):
        self.translate = translate
        self.max_waiting = max_waiting
        self.clock = clock
        self.patience = patience
        self.expected = 0  # jobs, when all clients are back
        self.back_by = 0.0
        self.batches = 0
        self.lines = 0
        self.dropped = 0
        self.is_closing = False
        self.jobs: deque[Job] = deque()
        self.changed = Condition()
        self.thread = Thread(target=self._work, name="translate", daemon=True)
        self.thread.start()

    @property
    def is_alive(self) -> bool:
        return self.thread.is_alive() and not self.is_closing

    def submit(self, lines: Sequence[str], wanted: Wanted, deadline: float) -> Job:
        """Put lines into the queue. The result of the job will have its translations, or an exception."""
        job = Job(lines, wanted, deadline)
        with self.changed:
            if self.is_closing:
                raise ClosedError
            if len(self.jobs) >= self.max_waiting:
                raise QueueFullError
            if lines:
                self.jobs.append(job)
                self.changed.notify()
            else:
                self._finish(job)
        return job

    def give_up(self, job: Job) -> None:
        """Nobody waits for this job any more. Does nothing if it is answered."""
        with self.changed:
            self._drop(job)

    def close(self) -> None:
        """Take nothing new, and return when all that was accepted is answered."""
        with self.changed:
            self.is_closing = True
            self.changed.notify()
        self.thread.join()

    def _work(self) -> None:
        while batch := self._next():
            found = self._found([job.lines[place] for job, place in batch], batch[0][0].wanted)
            self.batches += 1
            self.lines += len(batch)
            with self.changed:
                for (job, _), of_line in zip(batch, found, strict=True):
                    job.found.append(of_line)
                whole = [job for job in dict.fromkeys(job for job, _ in batch) if len(job.found) == len(job.lines)]
                self.expected = len(self.jobs) + sum(not job.is_over for job in whole)
                for job in whole:
                    self._finish(job)
                self.back_by = time.monotonic() + self.patience * self.expected
            del batch, found, job, of_line, whole  # nothing is kept while the thread waits

    def _found(self, lines: list[str], wanted: Wanted) -> list[Found]:
        """If they fail together, each is tried alone, so that the others of the batch have their translations."""
        try:
            return self.translate(lines, wanted)
        except Exception as error:
            if len(lines) == 1:
                return [error]
            return [self._found([line], wanted)[0] for line in lines]

    def _next(self) -> list[tuple[Job, int]]:
        """The lines that are translated next; none if the batcher is closed and has nothing left to do."""
        with self.changed:
            while True:
                for job in [job for job in self.jobs if job.deadline <= self.clock()]:
                    self._drop(job, TimeoutError())
                seconds = self._seconds_to_wait()
                if self.is_closing or seconds == 0:
                    return self._taken()
                self.changed.wait(seconds)

    def _seconds_to_wait(self) -> float | None:
        """For more jobs. None is for as long as it takes, if there are none."""
        if not self.jobs:
            return None
        is_full = sum(len(job.lines) - job.taken for job in self.jobs) >= MAX_LINES
        return 0 if is_full or len(self.jobs) >= self.expected else max(0, self.back_by - time.monotonic())

    def _taken(self) -> list[tuple[Job, int]]:
        """Lines of the jobs that have waited longest and want the same as the first of them."""
        batch: list[tuple[Job, int]] = []
        for job in [job for job in self.jobs if job.wanted == self.jobs[0].wanted]:
            if len(batch) == MAX_LINES:
                break
            first, job.taken = job.taken, min(len(job.lines), job.taken + MAX_LINES - len(batch))
            batch += [(job, place) for place in range(first, job.taken)]
            self.jobs.remove(job)
            if job.taken < len(job.lines):
                self.jobs.append(job)  # the rest comes after what the others have
        return batch

    def _drop(self, job: Job, why: Exception | None = None) -> None:
        if job.is_over:
            return
        job.is_over = True
        self.dropped += 1
        if job in self.jobs:
            self.jobs.remove(job)
        if why is not None:
            job.result.set_exception(why)

    def _finish(self, job: Job) -> None:
        if job.is_over:
            return
        job.is_over = True
        failed = next((found for found in job.found if isinstance(found, Exception)), None)
        if failed is not None:
            job.result.set_exception(failed)
        else:
            job.result.set_result([found for found in job.found if not isinstance(found, Exception)])

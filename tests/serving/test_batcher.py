"""Everybody gets their own translations, in bounded queues, and nothing is computed that nobody waits for."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Thread

import pytest
from fake_engines import PATIENCE, Clock, Held, until, upside_down

from hf_vanilla.inference.translator import Hypothesis
from hf_vanilla.serving.batcher import MAX_LINES, Batcher, ClosedError, Found, Job, QueueFullError, Wanted

FOREVER = 1e9
ONE = Wanted()


def texts(job: Job) -> list[list[str]]:
    return [[one.text for one in each] for each in job.result.result(PATIENCE)]


def occupied(held: Held, clock: Callable[[], float] | None = None, max_waiting: int = 100) -> tuple[Batcher, Job]:
    """A batcher whose thread is busy with a first job."""
    batcher = Batcher(held, max_waiting, clock or Clock())
    first = batcher.submit(["first"], ONE, FOREVER)
    assert held.begun.get(timeout=PATIENCE) == (["first"], ONE)
    return batcher, first


def test_what_arrives_meanwhile_is_translated_together_and_everybody_gets_their_own(held: Held) -> None:
    batcher, first = occupied(held)
    jobs = [batcher.submit([f"line {job} {place}" for place in range(job)], ONE, FOREVER) for job in range(1, 6)]
    held.may_go_on.set()
    for number, job in enumerate(jobs, 1):
        assert texts(job) == [[f"line {number} {place}"[::-1]] for place in range(number)]
    assert texts(first) == [["tsrif"]]
    assert len(held.begun.get(timeout=PATIENCE)[0]) == 15
    batcher.close()
    assert (batcher.batches, batcher.lines, batcher.dropped) == (2, 16, 0)
    assert held.begun.empty()


def test_a_batch_waits_for_the_clients_of_the_last_one(held: Held) -> None:
    """Or those that come back and those that waited would take turns, in two batches of half the size."""
    batcher = Batcher(held, 100, Clock(), patience=PATIENCE)
    first = batcher.submit(["first"], ONE, FOREVER)
    assert held.begun.get(timeout=PATIENCE)[0] == ["first"]
    waits = batcher.submit(["waits"], ONE, FOREVER)
    held.may_go_on.set()
    assert texts(first) == [["tsrif"]]
    again = batcher.submit(["again"], ONE, FOREVER)
    assert (texts(waits), texts(again)) == ([["stiaw"]], [["niaga"]])
    assert held.begun.get(timeout=PATIENCE)[0] == ["waits", "again"]
    assert batcher.submit(["one"], ONE, FOREVER) is not None  # now of two
    assert held.begun.empty()
    assert texts(batcher.submit(["two"], ONE, FOREVER)) == [["owt"]]
    assert held.begun.get(timeout=PATIENCE)[0] == ["one", "two"]
    batcher.close()


def test_clients_that_do_not_come_back_are_not_waited_for_longer(held: Held) -> None:
    batcher = Batcher(held, 100, Clock(), patience=0.001)
    batcher.submit(["first"], ONE, FOREVER)
    assert held.begun.get(timeout=PATIENCE)[0] == ["first"]
    waits = batcher.submit(["waits"], ONE, FOREVER)
    held.may_go_on.set()
    assert texts(waits) == [["stiaw"]]
    assert held.begun.get(timeout=PATIENCE)[0] == ["waits"]
    batcher.close()


@pytest.mark.parametrize("what", ["alone", "given up", "closing", "full"])
def test_a_batch_does_not_wait_where_there_is_no_use_in_it(held: Held, what: str) -> None:
    batcher = Batcher(held, 100, Clock(), patience=100 * PATIENCE)
    first = batcher.submit(["first"], ONE, FOREVER)
    assert held.begun.get(timeout=PATIENCE)[0] == ["first"]
    others = [] if what == "alone" else [batcher.submit(["waits"] * (MAX_LINES if what == "full" else 1), ONE, FOREVER)]
    if what == "given up":
        batcher.give_up(first)
    held.may_go_on.set()
    if what == "closing":
        Thread(target=batcher.close, daemon=True).start()
    if what == "alone":
        assert texts(first) == [["tsrif"]]
    others += [] if others else [batcher.submit(["again"], ONE, FOREVER)]
    assert texts(others[0])[0] == [others[0].lines[0][::-1]]
    batcher.close()


def test_jobs_that_do_not_want_the_same_are_not_mixed(held: Held) -> None:
    batcher, _ = occupied(held)
    two, drawn = Wanted(2), Wanted(2, has_attention=True)
    jobs = [batcher.submit([f"{place}"], wanted, FOREVER) for place, wanted in enumerate([two, ONE, two, ONE, drawn])]
    held.may_go_on.set()
    assert texts(jobs[0]) == [["0", "0 1"]]
    assert texts(jobs[3]) == [["3"]]
    batcher.close()
    batches = [held.begun.get(timeout=PATIENCE) for _ in range(3)]
    assert batches == [(["0", "2"], two), (["1", "3"], ONE), (["4"], drawn)]


def test_a_long_job_lets_others_pass(held: Held) -> None:
    batcher, _ = occupied(held)
    long = batcher.submit([f"long {place}" for place in range(2 * MAX_LINES + 5)], ONE, FOREVER)
    short = batcher.submit(["short"], ONE, FOREVER)
    held.may_go_on.set()
    assert texts(long) == [[f"long {place}"[::-1]] for place in range(2 * MAX_LINES + 5)]
    assert texts(short) == [["trohs"]]
    batches = [held.begun.get(timeout=PATIENCE)[0] for _ in range(3)]
    assert [len(batch) for batch in batches] == [MAX_LINES, MAX_LINES, 6]
    assert batches[1][0] == "short"
    batcher.close()


def test_more_than_may_wait_are_refused_at_once(held: Held) -> None:
    batcher, _ = occupied(held, max_waiting=3)
    for _ in range(3):
        batcher.submit(["waits"], ONE, FOREVER)
    with pytest.raises(QueueFullError):
        batcher.submit(["too many"], ONE, FOREVER)
    held.may_go_on.set()
    batcher.close()
    assert batcher.lines == 4


def test_a_job_that_is_given_up_is_not_translated(held: Held) -> None:
    batcher, _ = occupied(held)
    gone, waits = (batcher.submit([text], ONE, FOREVER) for text in ("gone", "waits"))
    batcher.give_up(gone)
    held.may_go_on.set()
    assert texts(waits) == [["stiaw"]]
    batcher.close()
    assert held.begun.get(timeout=PATIENCE)[0] == ["waits"]
    assert held.begun.empty()
    assert (batcher.dropped, gone.result.done()) == (1, False)


def test_a_job_whose_time_is_over_is_not_translated_though_nobody_has_given_it_up(held: Held, clock: Clock) -> None:
    """The race: its turn comes before those who wait for it have noticed that its time is over."""
    batcher, _ = occupied(held, clock)
    late, on_time = batcher.submit(["late"], ONE, 5.0), batcher.submit(["on time"], ONE, 5.5)
    clock.now = 5.0
    held.may_go_on.set()
    assert texts(on_time) == [["emit no"]]
    assert held.begun.get(timeout=PATIENCE)[0] == ["on time"]
    with pytest.raises(TimeoutError):
        late.result.result(PATIENCE)
    batcher.give_up(late)  # as they do when they notice
    batcher.close()
    assert held.begun.empty()
    assert batcher.dropped == 1


def test_the_rest_of_a_long_job_is_not_translated_when_it_is_given_up_meanwhile(held: Held) -> None:
    batcher = Batcher(held, 5, Clock())
    job = batcher.submit(["line"] * (MAX_LINES + 1), ONE, FOREVER)
    assert len(held.begun.get(timeout=PATIENCE)[0]) == MAX_LINES
    batcher.give_up(job)
    held.may_go_on.set()
    batcher.close()
    assert held.begun.empty()
    assert not job.result.done()


def test_a_failure_is_of_the_line_that_failed_only() -> None:
    def translate(lines: Sequence[str], wanted: Wanted) -> list[Found]:
        if "bad" in lines:
            raise RuntimeError("bad")
        return [LookupError("ugly") if line == "ugly" else [Hypothesis(line)] for line in lines]

    batcher = Batcher(translate, 100, Clock())
    jobs = {name: batcher.submit([name, "too"], ONE, FOREVER) for name in ("good", "bad", "ugly", "fine")}
    assert texts(jobs["good"]) == [["good"], ["too"]]
    assert texts(jobs["fine"]) == [["fine"], ["too"]]
    with pytest.raises(RuntimeError, match="bad"):
        jobs["bad"].result.result(PATIENCE)
    with pytest.raises(LookupError, match="ugly"):
        jobs["ugly"].result.result(PATIENCE)
    assert batcher.is_alive
    batcher.close()


def test_closing_answers_what_was_accepted_and_takes_nothing_more(held: Held) -> None:
    batcher, first = occupied(held)
    waits = batcher.submit(["waits"], ONE, FOREVER)
    closing = Thread(target=batcher.close)
    closing.start()
    until(lambda: not batcher.is_alive)
    with pytest.raises(ClosedError):
        batcher.submit(["late"], ONE, FOREVER)
    assert not waits.result.done()
    held.may_go_on.set()
    closing.join(PATIENCE)
    assert (texts(first), texts(waits)) == ([["tsrif"]], [["stiaw"]])
    assert not batcher.thread.is_alive()


def test_no_lines_are_answered_at_once(held: Held) -> None:
    batcher, _ = occupied(held)
    assert batcher.submit([], ONE, FOREVER).result.result(timeout=0) == []


def test_many_threads_get_their_own_answers() -> None:
    batcher = Batcher(upside_down, 1000)

    def ask(client: int) -> bool:
        asked = [[f"{client} {number} {line}" for line in range(number % 4)] for number in range(50)]
        jobs = [batcher.submit(lines, Wanted(1 + client % 2), FOREVER) for lines in asked]
        return all(
            [each[0] for each in texts(job)] == [line[::-1] for line in lines]
            for job, lines in zip(jobs, asked, strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(ask, client) for client in range(8)]
        wait(done)
    batcher.close()
    assert all(each.result() for each in done)

"""What a server has done, in the text format of Prometheus."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .batcher import Batcher

STATUS = Path("/proc/self/status")


class Metrics:
    """Counts answers. Only the thread of the event loop changes it."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self.characters = 0
        self.seconds = 0.0

    def count(self, status: int, seconds: float) -> None:
        self.answers[status] += 1
        self.seconds += seconds

    def text(self, batcher: Batcher) -> str:
        answers = [(f'{{status="{status}"}}', number) for status, number in sorted(self.answers.items())]
        rows: list[tuple[str, str, str, Sequence[tuple[str, float]]]] = [
            ("requests_total", "counter", "Requests answered, by status.", answers),
            ("request_seconds_sum", "counter", "Seconds from request to answer, all together.", [("", self.seconds)]),
            ("characters_total", "counter", "Characters of texts that were accepted.", [("", self.characters)]),
            ("lines_total", "counter", "Lines translated.", [("", batcher.lines)]),
            ("batches_total", "counter", "Batches that they were translated in.", [("", batcher.batches)]),
            ("dropped_total", "counter", "Requests given up before their answer.", [("", batcher.dropped)]),
            ("waiting", "gauge", "Requests that wait for their turn.", [("", len(batcher.jobs))]),
            ("resident_memory_bytes", "gauge", "Memory of the process.", [("", resident_memory())]),
        ]
        lines = []
        for name, kind, what, values in rows:
            lines += [f"# HELP hf_vanilla_{name} {what}", f"# TYPE hf_vanilla_{name} {kind}"]
            lines += [f"hf_vanilla_{name}{label} {value}" for label, value in values]
        return "\n".join(lines) + "\n"


def resident_memory() -> int:
    """Bytes; 0 where the system is not Linux."""
    try:
        rows = dict(line.split(":", 1) for line in STATUS.read_text(encoding="utf-8").splitlines())
        return int(rows["VmRSS"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0

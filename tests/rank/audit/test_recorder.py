"""What the audit notes reaches the agent, or the agent is told that it does not."""

import json
import os

from lab.rank.audit.recorder import Recorder
from lab.rank.events import Events


def test_records_that_are_too_long_are_not_lost_without_a_word() -> None:
    reading, writing = os.pipe()
    recorder = Recorder(Events(writing))
    for _ in range(2):
        recorder.record("files", what="x" * 600_000)
    recorder.close()
    (record,) = [json.loads(line)["record"] for line in os.read(reading, 1 << 16).splitlines()]
    os.close(reading)
    os.close(writing)
    assert (record["check"], record["what"][:6]) == ("broken", "files:")

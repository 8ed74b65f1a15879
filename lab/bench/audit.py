"""What `lab run --audit` costs: the same training with and without it, in turns."""

import re
from pathlib import Path
from typing import Any

from lab.bench.compare import ratio, spread
from lab.bench.ended import ended
from lab.channel import Progress
from lab.errors import LabError
from lab.runs.controller import RunController
from lab.runs.job import Job
from lab.topology import Topology
from lab.transport import Transport, transport_for

MODULE = "lab.bench.workers.audited"
TOOK = re.compile(r"took ([\d.]+)")
MODELS = {"mlp": 100, "gpt": 60}
"""What is trained, and for how many steps: the audit looks at the first ones most closely."""


def bench_audit(topology: Topology, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Milliseconds of a step with and without the audit, and their ratio, pair by pair.

    Raises:
        LabError: a run failed.
    """
    transport = transport_for(topology, Path.cwd())
    transport.up(progress)
    rows = []
    for model, steps in MODELS.items():
        taken: dict[bool, list[float]] = {False: [], True: []}
        for number in range(runs):
            for audit in (number % 2 == 0, number % 2 == 1):
                progress(f"{model}, audit {'on' if audit else 'off'}, run {number + 1} of {runs}")
                taken[audit].append(_train(topology, transport, model, steps, audit, progress))
        rows.append(
            {
                "model": model,
                "on": topology.on,
                "ranks": topology.world_size,
                "steps": steps,
                "ms a step": spread(taken[False])[0] * 1e3,
                "audited": spread(taken[True])[0] * 1e3,
                **ratio("without", taken[True], taken[False]),
                "all": taken[False],
                "all audited": taken[True],
            }
        )
    return rows


def _train(
    topology: Topology,
    transport: Transport,
    model: str,
    steps: int,
    audit: bool,
    progress: Progress,
) -> float:
    """Seconds of a step."""
    said = _Said()
    job = Job(command=("-m", MODULE, model, str(steps)), cwd=Path.cwd(), audit=audit)
    run = RunController(topology, job, transport, [said])
    run.up(progress)
    verdict = ended(run)
    found = TOOK.search(said.text)
    if found is None:  # findings do not matter: each step has the same samples
        raise LabError(f"no measurement: {verdict.summary}")
    return float(found[1]) / steps


class _Said:
    """A listener that keeps what the ranks print."""

    def __init__(self) -> None:
        self.text = ""

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `lab.runs.Listener`."""
        self.text += text if stream == "out" else ""

    def event(self, message: dict[str, Any]) -> None:
        """See `lab.runs.Listener`."""

"""Speaking with the hosts of an allocation of Slurm, through one srun."""

import contextlib
import json
import os
import queue
import threading
import time
from pathlib import Path

from lab.batch.login import login_of
from lab.batch.script import render_srun
from lab.channel import Progress
from lab.deploy.program import BOOTSTRAP
from lab.doctor.conversation import (
    GONE,
    Message,
    answers,
    close,
    first_lines,
    last_words,
    too_old,
)
from lab.errors import LabError
from lab.node.doctor import Hello
from lab.topology import Topology

MINUTES = 5
"""Of an allocation of our own."""
START_WITHIN = 600.0
"""Seconds for Slurm to give us hosts; meanwhile it is said what it waits for."""
INSIDE = "SLURM_JOB_ID"
"""The variable that says that we are in an allocation."""


class Allocation:
    """One srun, which sends its stdin to all hosts; implements `Conversation`.

    In an allocation (salloc, or from a job) it is a step of that, else a short job of its own.
    """

    def __init__(self, topology: Topology, folder: Path, hello: Hello, progress: Progress) -> None:
        """Start it, and wait for the hosts.

        Raises:
            LabError: Slurm gives none.
        """
        self._count = topology.nnodes
        self._heard: queue.Queue[Message] = queue.Queue()
        self._said = bytearray()
        allocated = topology.slurm.login is None and INSIDE in os.environ
        script = render_srun(topology, MINUTES, allocated=allocated)
        login = login_of(topology.slurm.login)
        self._channel = login.start(["bash", "-c", script, "doctor", BOOTSTRAP], folder)
        self._channel.send(first_lines(hello))
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self._wait_for_hosts(progress)
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        """Hand on what the hosts say, to the end of all."""
        problem = "srun has ended"
        try:
            for message in answers(self._channel, self._said):
                if message["type"] == "too-old":  # on whichever: it does not know its node rank
                    self._said += f"\n{too_old(message)}".encode()
                else:
                    self._heard.put(message)
        except (OSError, LabError) as error:
            problem = str(error)
        problem = last_words(self._said) or problem
        for rank in range(self._count):
            self._heard.put({"type": GONE, "node": rank, "problem": problem})

    def _wait_for_hosts(self, progress: Progress) -> None:
        """Until one of them has spoken."""
        progress("waiting for Slurm's hosts")
        told = ""
        give_up = time.monotonic() + START_WITHIN
        while time.monotonic() < give_up:
            first = self.hear(0.5)
            words = last_words(self._said)
            if words and words != told:
                told = words
                progress(words)
            if first is not None and first["type"] == GONE:
                raise LabError(f"srun gives no hosts: {first['problem']}")
            if first is not None:
                self._heard.put(first)
                return
        raise LabError(f"srun gives no hosts in {START_WITHIN:g} s: {told or 'it says nothing'}")

    def tell(self, order: Message) -> None:
        """See `Conversation`."""
        self._channel.send(json.dumps(order).encode() + b"\n")

    def hear(self, timeout: float) -> Message | None:
        """See `Conversation`."""
        with contextlib.suppress(queue.Empty):
            return self._heard.get(timeout=max(0.0, timeout))
        return None

    def close(self) -> None:
        """See `Conversation`."""
        close(self._channel)

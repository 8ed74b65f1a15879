"""The checks: each takes what was found so far and says nothing of what is not known yet."""

from collections.abc import Callable

from lab.doctor.check import Check
from lab.doctor.checks.accelerators import gpu_links, gpus
from lab.doctor.checks.connections import connections, exposed, port
from lab.doctor.checks.links import bandwidth, clock, latency, mtu
from lab.doctor.checks.reach import answers, gloo_address, interface, names
from lab.doctor.checks.resources import (
    container,
    cores,
    disk,
    kernel,
    limits,
    memory,
    shared_memory,
)
from lab.doctor.checks.roll_call import roll_call
from lab.doctor.checks.slurm import slurm
from lab.doctor.checks.software import backend, code, environment, python, torch
from lab.doctor.examined import Examined

CHECKS: tuple[Callable[[Examined], list[Check]], ...] = (
    *(answers, names, gloo_address, interface, connections, port, exposed),
    *(mtu, latency, bandwidth, clock),
    *(python, torch, backend, code, environment),
    *(cores, memory, shared_memory, limits, container, disk, kernel),
    *(gpus, gpu_links, slurm, roll_call),
)
"""In the order of the report."""


def judge(exam: Examined) -> list[Check]:
    """What all checks say."""
    return [line for check in CHECKS for line in check(exam)]

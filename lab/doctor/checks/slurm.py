"""Whether Slurm is well on the hosts of the allocation."""

from lab.doctor.check import Check
from lab.doctor.examined import Examined

CURES = {
    "munge": "systemctl status munge: it runs, with the key of the cluster and the right time",
    "slurmctld": "scontrol ping, and the log of slurmctld; the host must reach SlurmctldHost",
}


def slurm(exam: Examined) -> list[Check]:
    """Whether munge makes and takes credentials there, and slurmctld answers."""
    told = {name: look for name, look in exam.values("slurm").items() if look is not None}
    checks = [
        Check(service, "fail", f"{name}: {said}", (name,), CURES[service])
        for name, services in told.items()
        for service, said in services.items()
        if said is not None
    ]
    if told and not checks:
        found = "munge and slurmctld answer on every host"
        checks.append(Check("slurm", "pass", found, tuple(told)))
    return checks

"""Training that is as it should be: nothing may be said against it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """A training job of lab's own, short."""

    job: str
    parallel: str
    impl: str
    nodes: int = 2
    slots: int = 1
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.job} {self.parallel} {self.impl}"

    @property
    def words(self) -> tuple[str, ...]:
        """After `lab run -m`."""
        how = ("--parallel", self.parallel, "--impl", self.impl)
        return (f"lab.training.{self.job}", *how, *self.options)


WORKLOADS = (
    Workload("wine", "ddp", "ours", nodes=2, slots=2, options=("--epochs", "3")),
    Workload("wine", "ddp", "torch", options=("--epochs", "3")),
    Workload("wine", "ddp", "minimal", options=("--epochs", "3")),
    Workload("digits", "ddp", "torch", options=("--steps", "12", "--clip", "1")),
    Workload("digits", "fsdp", "ours", options=("--steps", "12", "--clip", "1")),
    Workload(
        "mlp",
        "zero1",
        "ours",
        options=(
            "--steps",
            "12",
        ),
    ),
    Workload("mlp", "zero2", "ours", options=("--steps", "12", "--accumulate", "2")),
    Workload("mlp", "ddp", "ours", options=("--steps", "12", "--accumulate", "2")),
    Workload("mlp", "fsdp", "torch", options=("--steps", "12", "--clip", "1")),
    Workload(
        "gpt",
        "ddp",
        "ours",
        options=(
            "--steps",
            "6",
        ),
    ),
    Workload(
        "gpt",
        "fsdp",
        "torch",
        options=(
            "--steps",
            "6",
        ),
    ),
)

"""The sections of a topology: one model for each place to run, the master and the job."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from lab.topology.names import check_address
from lab.topology.units import (
    read_delay,
    read_loss,
    read_memory,
    read_rate,
)


class Section(BaseModel):
    """What all models of a topology share: no unknown keys, no conversions, no changes."""

    # strict: `slots: "2"`, `port: 29500.0` and `cpus: yes` are mistakes worth hearing of.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=False)


def _one_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("must be one line of text that is not empty")
    return text


def _text_of_number(value: object) -> object:
    """Numbers become text where YAML's users leave the quotes out: `args: [--epochs, 20]`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


Text = Annotated[str, AfterValidator(_one_line)]
Port = Annotated[int, Field(ge=1, le=65535)]
Cpus = Annotated[float, Field(ge=0.01, le=4096, allow_inf_nan=False)]
Memory = Annotated[str, BeforeValidator(read_memory)]
Address = Annotated[str, AfterValidator(check_address)]


class Master(Section):
    """Where the ranks meet. Rank 0, on the first node, hosts the rendezvous store there."""

    addr: Address | None = None
    """The first node's name or address. Default: its address, else its name."""
    port: Port | None = None
    """TCP port of the store. Default: one that is free is picked for each run."""


class Link(Section):
    """How good each node's network link is. What is left out is not limited."""

    rate: Annotated[str, BeforeValidator(read_rate)] | None = None
    """Outgoing bandwidth of each node, in tc's units of bits per second: `1gbit`."""
    delay: Annotated[str, BeforeValidator(read_delay)] | None = None
    """Added to each packet that leaves a node: `1ms`."""
    loss: Annotated[str, BeforeValidator(read_loss)] | None = None
    """Share of the packets that get lost on their way out: `0.1%`."""


def _read_gpus(value: object) -> object:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 64
    if value is not None and value != "all" and not is_count:
        raise ValueError("must be `all` or the number of GPUs for each node, from 1 to 64")
    return value


class DockerOptions(Section):
    """How nodes are made when they are containers on this machine."""

    cpus: Cpus | None = None
    """CPU cores each node may use, where the node does not say otherwise. Default: all."""
    memory: Memory | None = None
    """Memory limit of each node, where the node does not say otherwise. Default: none."""
    shm: Memory | None = None
    """Size of /dev/shm, which data loader workers use. Default: the engine's (64m)."""
    internet: bool = True
    """Whether nodes reach the outside; they reach each other in any case."""
    link: Link | None = None
    """Limits of each node's network link. Default: none."""
    gpus: Annotated[int | Literal["all"] | None, BeforeValidator(_read_gpus)] = None
    """GPUs each node sees: a number, or `all`. Default: none, so that `nccl` is refused."""


def _check_user(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}", text) is None:
        raise ValueError("must be the name of a user: letters, digits, and _ . - @ inside")
    return text


class SshOptions(Section):
    """How nodes are reached when they are hosts of their own. No passwords, no keys: only files."""

    user: Annotated[str, AfterValidator(_check_user)] | None = None
    """Log in as. Default: what ~/.ssh/config says, else the name of the calling user."""
    port: Port | None = None
    """Port of the SSH servers. Default: what ~/.ssh/config says, else 22."""
    config: Text | None = None
    """Path of a file to read in place of ~/.ssh/config."""
    identity_file: Text | None = None
    """Path of the private key on this machine. Default: the agent's keys and the usual files."""
    workdir: Text = "~/lab"
    """Folder on the hosts that runs live in."""
    python: Text = "python3"
    """The Python on the hosts: a name on PATH or a path."""


def _check_argument(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not hold a NUL character")
    return text


Argument = Annotated[str, BeforeValidator(_text_of_number), AfterValidator(_check_argument)]


class JobOptions(Section):
    """The job that runs where a command names none."""

    script: Text
    """A path such as `train.py`, or a module such as `-m lab.training.wine`."""
    args: Annotated[tuple[Argument, ...], Field(strict=False)] = ()
    """Arguments of the script, one item each: [--epochs, 20]."""

    @property
    def argv(self) -> tuple[str, ...]:
        """Script and arguments as Python's command line takes them."""
        flag, _, module = self.script.partition(" ")
        head = ("-m", module.strip()) if flag == "-m" else (self.script,)
        return (*head, *self.args)

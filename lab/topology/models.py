"""The topology: which nodes there are, how many ranks each takes, and where they run."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from lab.topology.checks import cross_problems
from lab.topology.expansion import Expansion, expand_nodes
from lab.topology.names import check_host_name, check_interface, check_label, check_variable
from lab.topology.options import (
    Address,
    Argument,
    Cpus,
    DockerOptions,
    JobOptions,
    Master,
    Memory,
    Section,
    SshOptions,
)
from lab.topology.ranks import Rank, first_ranks, rank_at
from lab.topology.slurm import SlurmOptions

MAX_SLOTS = 1024
"""Ranks a node may have: more is a slip of the finger."""

Place = Literal["local", "docker", "ssh", "slurm"]
Backend = Literal["auto", "gloo", "nccl"]
Slots = Annotated[int, Field(ge=1, le=MAX_SLOTS)]

RESERVED_ENV = frozenset(
    [
        "RANK",
        "LOCAL_RANK",
        "NODE_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "NNODES",
        "MASTER_ADDR",
        "MASTER_PORT",
    ]
)
"""Variables every rank gets from the lab: a topology cannot set them."""


def _check_env_name(name: str) -> str:
    check_variable(name)
    if name in RESERVED_ENV or name.startswith(("TORCHELASTIC_", "LAB_")):
        cure = {"MASTER_ADDR": "master.addr", "MASTER_PORT": "master.port"}.get(name)
        raise ValueError(
            "is set by the lab for every rank"
            + (f"; use {cure}" if cure else " and cannot be here")
        )
    return name


EnvName = Annotated[str, AfterValidator(_check_env_name)]


class Node(Section):
    """One node: a machine, or what stands for one."""

    name: Annotated[str, AfterValidator(check_host_name)]
    """Host name (RFC 1123), unique in the topology."""
    address: Address | None = None
    """Where the other nodes reach it: an IP address or a name. Default: its name."""
    slots: Slots = 1
    """How many ranks it takes; with nccl: its GPUs. Default: the topology's `slots`."""
    interface: Annotated[str, AfterValidator(check_interface)] | None = None
    """The network interface the ranks talk over (GLOO_SOCKET_IFNAME). Default: gloo's choice."""
    cpus: Cpus | None = None
    """CPU cores it may use. Default: `docker.cpus`."""
    memory: Memory | None = None
    """Memory it may use. Default: `docker.memory`."""


class Topology(Section):
    """A cluster: nodes, the ranks on them, and the place where they run.

    As in a file, `Topology.model_validate({"nodes": "node[0-3]", "slots": 2})` takes a node set, a
    count or a list for the nodes; afterwards they are a tuple of `Node` in node-rank order, with
    every default filled in.
    """

    name: Annotated[str, AfterValidator(check_label)] = "lab"
    """Name of the topology; containers and networks carry it."""
    on: Place = "docker"
    """Where the nodes are: this machine, containers on it, hosts of their own, a SLURM cluster."""
    nodes: Annotated[tuple[Node, ...], Field(strict=False)]
    """The nodes in node-rank order."""
    min_nodes: Annotated[int, Field(ge=1)] | None = None
    """On slurm: the fewest nodes to start with (`nodes: 2-4` sets 2). Default: all of them."""
    slots: Slots = 1
    """Ranks on each node that does not say otherwise."""
    backend: Backend = "auto"
    """Collective backend: `auto` takes nccl where the nodes are known to have GPUs, else gloo."""
    master: Master = Master()
    """Where the ranks meet."""
    env: dict[EnvName, Argument] = Field(default_factory=dict)
    """Variables for every rank, beside those that the lab sets itself."""
    docker: DockerOptions = DockerOptions()
    """Options for `on: docker`."""
    ssh: SshOptions = SshOptions()
    """Options for `on: ssh`."""
    slurm: SlurmOptions = SlurmOptions()
    """Options for `on: slurm`."""
    job: JobOptions | None = None
    """What to run when a command does not say."""

    @property
    def nnodes(self) -> int:
        """The number of nodes."""
        return len(self.nodes)

    @property
    def is_elastic(self) -> bool:
        """Whether a job may begin with fewer nodes than there are here."""
        return self.min_nodes is not None and self.min_nodes < self.nnodes

    @property
    def world_size(self) -> int:
        """The number of ranks on all nodes together."""
        return self.first_ranks[-1]

    @cached_property
    def first_ranks(self) -> list[int]:
        """Global rank of local rank 0 for each node, and the world size as one item more."""
        return first_ranks(node.slots for node in self.nodes)

    @property
    def master_node(self) -> Node:
        """The node with node rank 0: its rank 0 hosts the rendezvous store."""
        return self.nodes[0]

    def rank(self, rank: int) -> Rank:
        """The rank with this global number; raises IndexError where there is none."""
        return rank_at(rank, self.nodes, self.first_ranks)

    def ranks(self) -> tuple[Rank, ...]:
        """All ranks in order. Long for a large world: use `rank` to look at single ones."""
        return tuple(
            Rank(first + local, local, node_rank, node, node.slots)
            for node_rank, (node, first) in enumerate(
                zip(self.nodes, self.first_ranks, strict=False)
            )
            for local in range(node.slots)
        )

    @cached_property
    def _node_ranks(self) -> dict[str, int]:
        return {node.name: index for index, node in enumerate(self.nodes)}

    def node_rank(self, name: str) -> int:
        """The position of a node among the nodes, from 0; raises KeyError for a stranger."""
        return self._node_ranks[name]

    def resolved_backend(self) -> Literal["gloo", "nccl"]:
        """The backend with `auto` decided: nccl only where the topology itself promises GPUs."""
        if self.backend != "auto":
            return self.backend
        gpus = {"docker": self.docker.gpus, "slurm": self.slurm.gpus_per_node}.get(self.on)
        return "nccl" if gpus is not None else "gloo"

    @model_validator(mode="wrap")
    @classmethod
    def _find_all_problems(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Expand the nodes, validate, and report what is wrong across fields beside the rest.

        A plain `after` validator would run only once every single field is right, so the user
        would hear of a duplicate name only after having put right all else.
        """
        if not isinstance(data, Mapping):
            return handler(data)
        prepared, expansion = _prepare(data)
        errors: list[InitErrorDetails] = []
        try:
            topology = handler(prepared)
        except ValidationError as error:
            errors = _in_terms_of_the_input(error, expansion)
        refused = {details["loc"] for details in errors if "loc" in details}
        errors += [
            _custom(problem.loc, problem.found, problem.allowed)
            for problem in [*expansion.problems, *cross_problems(prepared, expansion)]
            if problem.loc not in refused
        ]
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return topology


def _prepare(data: Mapping[Any, Any]) -> tuple[dict[Any, Any], Expansion]:
    """The input with nodes as a list of mappings that each have slots, and empty sections gone."""
    sections = ("master", "env", "docker", "ssh", "slurm")
    prepared = {
        key: value for key, value in data.items() if not (value is None and key in sections)
    }
    expansion = Expansion()
    if "nodes" in prepared:
        expansion = expand_nodes(prepared["nodes"], slurm=prepared.get("on") == "slurm")
        # A wrong default is one problem, not one for each node that takes it.
        slots = prepared.get("slots", 1)
        usable = isinstance(slots, int) and not isinstance(slots, bool) and 1 <= slots <= MAX_SLOTS
        prepared["nodes"] = [
            {"slots": slots if usable else 1, **node} if isinstance(node, dict) else node
            for node in expansion.nodes or [{"name": "node0"}]
        ]
        if expansion.min_nodes is not None:
            prepared["min_nodes"] = expansion.min_nodes
    return prepared, expansion


def _custom(loc: tuple[int | str, ...], found: Any, allowed: str) -> InitErrorDetails:
    error = PydanticCustomError("topology", "{allowed}", {"allowed": allowed})
    return InitErrorDetails(type=error, loc=loc, input=found)


def _in_terms_of_the_input(error: ValidationError, expansion: Expansion) -> list[InitErrorDetails]:
    """Pydantic's errors with places in the nodes as they were written, each said once."""
    errors: dict[tuple[Any, ...], InitErrorDetails] = {}
    for item in error.errors(include_url=False):
        loc = item["loc"]
        if len(loc) > 1 and loc[0] == "nodes" and isinstance(loc[1], int):
            loc = expansion.place(loc[1], *loc[2:])
        details = InitErrorDetails(type=item["type"], loc=loc, input=item["input"])
        if "ctx" in item:
            details["ctx"] = item["ctx"]
        # node_[0-9999] is one bad name, not ten thousand.
        errors.setdefault((loc, item["type"]), details)
    return list(errors.values())

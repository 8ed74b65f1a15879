"""What a step costs a rank: bytes on the wire and bytes of tensors, measured and by formula.

S are the bytes of all parameters, N the ranks. No torch here; `measure.py` measures.
"""

from dataclasses import dataclass

from lab.prove.recipe import Recipe

WIRE_TOLERANCE = 0.05
"""How far measured bytes may be from the formula: messages have headers."""


@dataclass(frozen=True)
class Wire:
    """Bytes that a rank receives in a step."""

    measured: list[int] | None
    """By rank: what TCP counted in this process's sockets. None: this system does not tell."""
    formula: str
    """In words."""
    expected: int | None
    """By the formula; None where there is none."""
    binding: bool
    """Whether a difference is a fault: of our own, it is."""

    @property
    def ratio(self) -> float | None:
        """Measured / formula, of the mean rank; None where either is missing."""
        if self.measured is None or not self.expected:
            return None
        return sum(self.measured) / len(self.measured) / self.expected

    @property
    def faults(self) -> list[str]:
        """What is not as it must be."""
        if not self.binding or self.measured is None or self.expected is None:
            return []
        if not self.expected:
            return ["bytes on the wire where none are needed"] if any(self.measured) else []
        ratio = self.ratio
        if ratio is None or abs(ratio - 1) <= WIRE_TOLERANCE:
            return []
        return [f"{ratio:.2f} times the bytes of the formula {self.formula} on the wire"]


@dataclass(frozen=True)
class Memory:
    """Bytes of tensors that a rank holds. Lists: by rank."""

    parameters: list[int]
    """Between steps, when the gradients are there."""
    gradients: list[int]
    optimizer: list[int]
    peak: list[int]
    """The most during a step, everything included, also activations and buffers."""
    unsharded: list[int] | None
    """The most of whole parameters beside the shards. FSDP of ours only."""
    model: int
    """S: all parameters, whole."""
    unit: int
    """The largest unit that FSDP gathers at once, whole."""
    expected: int
    """Parameters, gradients and optimiser states, by the formula."""
    most: int | None
    """What the peak may reach, and next what whole parameters may. FSDP only."""
    unsharded_most: int | None
    binding: bool
    """Whether a difference is a fault: of our own, it is."""

    @property
    def held_by_rank(self) -> list[int]:
        """Parameters, gradients and states together."""
        rows = zip(self.parameters, self.gradients, self.optimizer, strict=True)
        return [sum(row) for row in rows]

    @property
    def held(self) -> int:
        """The same, of the rank with the most."""
        return max(self.held_by_rank)

    @property
    def faults(self) -> list[str]:
        """What is not as it must be."""
        if not self.binding:
            return []
        found = []
        if self.held != self.expected:
            found.append(f"a rank holds {self.held} bytes instead of {self.expected}")
        peaks = (
            ("a rank's peak is", self.peak, self.most),
            ("whole parameters beside the shards take", self.unsharded, self.unsharded_most),
        )
        for what, measured, most in peaks:
            if measured is not None and most is not None and max(measured) > most:
                found.append(f"{what} {max(measured)} bytes, allowed are {most}")
        return found


def wire_formula(recipe: Recipe, size: int) -> tuple[str, float | None]:
    """Bytes that a rank receives in a step, as words and as a multiple of S.

    An all-reduce is a reduce-scatter and an all-gather, each of which needs (N-1)/N S. FSDP gathers
    parameters before forward and again before backward. ZeRO gathers them after the step.
    """
    gathers, scatters = 1.0, 1.0
    if recipe.parallel == "none":
        return "0", 0.0
    if recipe.all_reduce == "hierarchical":
        return "depends on the nodes", None
    if recipe.parallel == "fsdp":
        gathers = recipe.accumulate * (2 if recipe.reshard_after_forward else 1)
    parts = gathers + scatters
    if recipe.comm_hook != "none" or recipe.precision != "float32":
        parts /= 2
    if recipe.parallel == "zero1":
        parts += 1
    return f"{parts:g} (N-1)/N S", parts * (size - 1) / size


def held_formula(recipe: Recipe, sizes: list[int], ranks: int) -> int:
    """Elements of parameters, gradients and optimiser states that a rank holds between steps.

    Args:
        recipe: the method, and Adam with two states for each parameter, or SGD with one.
        sizes: elements of each unit.
        ranks: N.
    """
    states = 2 if recipe.optimizer == "adam" else 1
    whole = sum(sizes)
    part = -(-whole // ranks)
    if recipe.parallel == "fsdp":
        return (2 + states) * sum(-(-size // ranks) for size in sizes)
    if recipe.parallel == "zero1":
        return ranks * part + whole + states * part
    if recipe.parallel == "zero2":
        return ranks * part + part + states * part
    return (2 + states) * whole


def unsharded_formula(recipe: Recipe, sizes: list[int], ranks: int) -> tuple[int, int] | None:
    """Elements of whole parameters, and of whole gradients, that FSDP may hold beside the shards.

    Parameters of the unit that computes and of the one gathered in advance; gradients of the unit
    that computes and of the one before, which are on their way. What comes in from other ranks
    takes the place of what has left and of shards of gradients that are not there yet.
    """
    if recipe.parallel != "fsdp":
        return None
    padded = [-(-size // ranks) * ranks for size in sizes]
    parameters = 2 * max(padded) if recipe.reshard_after_forward else sum(padded)
    gradients = 2 * max(padded) + (sum(padded) if recipe.accumulate > 1 else 0)
    return parameters, gradients

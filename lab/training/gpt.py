"""Train a small GPT on the source of Python's own standard library, and let it write some.

    python -m lab.training.gpt                                   # one process
    lab run -m lab.training.gpt                                  # the topology's ranks
    lab run -m lab.training.gpt --parallel fsdp --impl torch     # sharded, by PyTorch
    torchrun --nproc-per-node 2 -m lab.training.gpt              # by PyTorch's launcher

Losses are in nats per byte: 5.55 is ln 256, a guess among all bytes. Four ranks that share two
cores come below 2.0 on text that the model has not seen, in less than three minutes.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax

from lab.errors import UsageError
from lab.training.arguments import count, positive_int
from lab.training.gpt_data import Windows, library_source, require_same_text
from lab.training.gpt_model import GPT
from lab.training.job import run
from lab.training.options import Options, training_arguments
from lab.training.seeding import derived
from lab.training.trainer import Trainer
from lab.training.world import World

PROGRAM = "lab.training.gpt"
HELD_OUT = 0.05
"""Part of the text, its end, that is not trained on."""
EVALUATED = 512
"""Windows of it, spread evenly, that are evaluated: as many take a second."""
TEMPERATURE = 0.8
"""Below 1 the likely bytes become likelier: fewer slips, less variety."""


@dataclass(frozen=True, kw_only=True)
class GptOptions(Options):
    """What the command line can say."""

    steps: int | None = 400
    batch_size: int = 12
    lr: float = 3e-3
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    warmup: int = 40
    clip: float | None = 1.0
    report_every: int = 50
    evaluate_every: int = 100
    SAVE_EVERY: ClassVar[int] = 200

    context: int = 64
    """Bytes that the model sees at once."""
    width: int = 128
    heads: int = 4
    layers: int = 4
    text: Path | None = None
    """Instead of the standard library's source."""
    prompt: str = "def "
    """What the sample begins with."""
    sample: int = 300
    """Bytes to write at the end."""


def train(world: World, options: GptOptions) -> None:
    """The whole of it."""
    text = library_source() if options.text is None else _read(options.text)
    require_same_text(text)
    seen = int(len(text) * (1 - HELD_OUT))
    if len(text) - seen <= options.context:
        raise UsageError(
            f"the text has {len(text)} bytes: too few to hold {HELD_OUT:.0%} out in windows of "
            f"{options.context}; use a longer text or a smaller --context"
        )
    held_out = Windows(text[seen:], options.context, at_most=EVALUATED)
    trainer = Trainer(
        lambda: GPT(options.context, options.width, options.heads, options.layers),
        Windows(text[:seen], options.context),
        options,
        world,
        loss=loss,
        count=options.context,
        units=blocks,
        held_out=held_out,
        evaluate=lambda model, batch: [float(loss(model, batch)) / options.context],
        scores=("held out",),
        name="gpt",
        items="bytes",
    )
    trainer.train()
    # On all ranks, for the forward of a sharded model is a collective.
    prompt = options.prompt.encode()
    written = write(trainer.model, prompt, options.sample, options.context, world, options.seed)
    if world.is_main and options.sample:
        print(f"\n{_printable(written)}", flush=True)


def blocks(model: nn.Module) -> list[nn.Module]:
    """What FSDP gathers at once."""
    assert isinstance(model, GPT)
    return list(model.blocks)


def loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Summed over all bytes of a batch, in nats."""
    tokens, following = batch
    logits = model(tokens)
    return cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="sum")


@torch.no_grad()
def write(
    model: nn.Module, prompt: bytes, length: int, context: int, world: World, seed: int
) -> bytes:
    """Let the model go on, byte by byte. A collective where the model is sharded.

    Args:
        model: bare or wrapped.
        prompt: at least a byte.
        length: bytes to add.
        context: the longest input of the model.
        world: says where the model is.
        seed: of the choice among likely bytes; the same on every rank.

    Returns:
        The prompt and what follows.
    """
    model.eval()
    generator = torch.Generator().manual_seed(derived(seed, "sample"))
    written = list(prompt)
    for _ in range(length):
        tokens = torch.tensor([written[-context:]], device=world.device)
        likely = softmax(model(tokens)[0, -1].float() / TEMPERATURE, dim=0)
        written.append(int(torch.multinomial(likely.cpu(), 1, generator=generator)))
    return bytes(written)


def _printable(text: bytes) -> str:
    """Without what a terminal would take as a command."""
    characters = text.decode(errors="replace")
    return "".join(
        c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in characters
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"--text {path}: {error.strerror}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; the exit code."""
    parser = training_arguments(PROGRAM, "Train a small GPT.", GptOptions())
    parser.add_argument("--context", type=positive_int, help="bytes that it sees at once (64)")
    parser.add_argument("--width", type=positive_int, help="of the residual stream (128)")
    parser.add_argument("--heads", type=positive_int, help="of each attention (4)")
    parser.add_argument("--layers", type=positive_int, help="blocks (4)")
    parser.add_argument("--text", type=Path, help="file to train on (Python's standard library)")
    parser.add_argument("--prompt", help="of the sample at the end ('def ')")
    parser.add_argument("--sample", type=count, help="bytes to write at the end; 0: none (300)")
    options = GptOptions(**vars(parser.parse_args(argv)))
    if options.width % options.heads:
        parser.error(f"--width {options.width} does not divide among --heads {options.heads}")
    if not options.prompt:
        parser.error("--prompt is empty: a text begins with something")
    return run(PROGRAM, options, train)


if __name__ == "__main__":
    sys.exit(main())

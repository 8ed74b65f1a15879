"""Train MODEL with METHOD, in one process or on many nodes.

    python FILE
    lab run FILE
    torchrun --nproc-per-node 4 FILE
    srun python FILE                      (Slurm; one task for each rank)

A step takes --batch-size samples in all, so it is the same step on any number of ranks. Where there
is a checkpoint of the same training, it goes on from it, also on another number of ranks.
"""

import argparse
import importlib
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from lab.templates.ddp import clip_gradients, exchanging, leave, wrap
from lab.templates.mlp import Model
from lab.templates.rows import dataset

TIMEOUT = timedelta(minutes=10)
"""Of a collective: how long ranks wait for one that does not come."""
REQUEUE = os.environ.get("LAB_REQUEUE")
"""In job scripts of lab's: signals warn of the end, and who makes this file begins again."""
IGNORED = -100
"""A target that does not count, such as padding; cross_entropy's default."""

Plan = dict[str, int]
"""What says which samples a step has."""


def positive(text: str) -> int:
    """1, 2, 3..."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--epochs", type=positive, default=5, help="times through the data")
    add("--batch-size", type=positive, default=96, help="samples of a step, of all ranks together")
    add("--micro-batch", type=positive, default=4, help="samples of a forward, on one rank")
    add("--lr", type=float, default=1e-3, help="learning rate")
    add("--clip", type=float, default=1.0, help="largest norm of the gradient")
    add("--seed", type=int, default=0, help="of weights, order and dropout")
    add("--save-every", type=positive, default=25, help="steps between checkpoints")
    add("--log-every", type=positive, default=10, help="steps between lines")
    checkpoint = Path("checkpoints") / (Path(__file__).stem + ".pt")
    add("--checkpoint", type=Path, default=checkpoint, help="rank 0's file")
    return parser.parse_args()


def join() -> torch.device:
    """Join the process group that the environment describes, and choose this rank's device."""
    env = os.environ
    if "RANK" not in env and "SLURM_STEP_ID" in env:  # srun: a task is a rank
        env["RANK"], env["WORLD_SIZE"] = env["SLURM_PROCID"], env["SLURM_STEP_NUM_TASKS"]
        # Tasks of each node, such as 4(x2),3: four on each of two nodes, three on a third.
        counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", env["SLURM_STEP_TASKS_PER_NODE"])
        tasks = [count for count, nodes in counts for _ in range(int(nodes or 1))]
        env["LOCAL_RANK"] = env["SLURM_LOCALID"]
        env["LOCAL_WORLD_SIZE"] = tasks[int(env["SLURM_NODEID"])]
        if "MASTER_ADDR" not in env:  # rank 0 is on the first node of the step
            command = ["scontrol", "show", "hostnames", env["SLURM_STEP_NODELIST"]]
            hosts = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            env["MASTER_ADDR"] = hosts.split()[0]
        port = 10000 + int(env["SLURM_JOB_ID"]) % 20000  # not that of other jobs of these nodes
        env.setdefault("MASTER_PORT", str(port))
    elif "RANK" not in env:  # no launcher: a group of one, on any free port
        env.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")

    local_rank, gpus = int(env.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    # nccl wants a GPU for each rank. A Slurm task that sees only its own has number 0 for it.
    on_node = int(env.get("SLURM_GPUS_ON_NODE", 1)) if gpus == 1 else gpus
    on_gpu = gpus > 0 and on_node >= int(env.get("LOCAL_WORLD_SIZE", 1))
    device = torch.device("cuda", local_rank % gpus) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)  # before anything is put on "the" GPU

    # Optimizers import this. Imported after the group was made it keeps the group alive beyond
    # destroy_process_group, and gloo's threads may then abort Python at its end (torch 2.13).
    importlib.import_module("torch._dynamo")
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT, device_id=device if on_gpu else None)
    return device


class EpochSampler(DistributedSampler[Any]):
    """DistributedSampler that can begin amid an epoch.

    Rank r of N takes r, r + N, r + 2 N, ... of the epoch's order, which depends on seed and epoch
    alone: the first N k samples are the same ones for any N.
    """

    done = 0
    """Samples of this epoch that this rank has had already."""

    def __iter__(self) -> Iterator[int]:
        """The indices of what is left of this rank's share."""
        return islice(super().__iter__(), self.done, None)


def losses_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Each target's loss, in their shape: sums and counts add up over ranks, means do not."""
    flat = cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return flat.view_as(targets)


def take_step(
    model: nn.Module,
    optimizer: Optimizer,
    batches: list[list[torch.Tensor]],
    clip: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step on this rank's microbatches. The mean loss of all ranks, the gradient's norm."""
    # Of all ranks and microbatches: a mean of means would be wrong where counts differ.
    count = torch.stack([(targets != IGNORED).sum() for _, targets in batches]).sum()
    dist.all_reduce(count)
    loss_sum = torch.zeros((), device=count.device)
    for number, (inputs, targets) in enumerate(batches, start=1):
        with exchanging(model, number == len(batches)):  # once a step, not for each microbatch
            loss = losses_of(model(inputs), targets).sum()
            # The exchange divides by the number of ranks, so this undoes it.
            (loss * dist.get_world_size() / count).backward()
        loss_sum += loss.detach()
    dist.all_reduce(loss_sum)
    norm = clip_gradients(model, clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss_sum / count, norm


@torch.no_grad()
def evaluate(
    model: nn.Module, data: TensorDataset, size: int, device: torch.device
) -> tuple[float, float]:
    """Mean loss and accuracy, every sample counted once."""
    samples, rank, world = len(data), dist.get_rank(), dist.get_world_size()
    # Each rank has as many batches, since forward may be a collective. Where samples do not divide,
    # the last of some ranks is one that another has, and is left out of the sums.
    share = range(rank, math.ceil(samples / world) * world, world)
    loader = DataLoader(Subset(data, [index % samples for index in share]), batch_size=size)
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    model.eval()
    for first, (inputs, targets) in zip(range(0, len(share), size), loader, strict=True):
        own = sum(index < samples for index in share[first : first + size])
        outputs, targets = model(inputs.to(device))[:own], targets[:own].to(device)
        correct = outputs.argmax(dim=-1) == targets
        counted = targets != IGNORED
        totals += torch.stack([losses_of(outputs, targets).sum(), correct.sum(), counted.sum()])
    model.train()
    dist.all_reduce(totals)
    loss, correct, count = totals.tolist()
    return loss / count, correct / count


def save(path: Path, model: nn.Module, optimizer: Optimizer, step: int, plan: Plan) -> None:
    """Collect the whole state from all ranks, and have one rank write it.

    The names are those of the bare model, so that it loads into any wrapper on any number of ranks.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)
    moments = get_optimizer_state_dict(model, optimizer, options=options)
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            torch.save({"model": weights, "optimizer": moments, "step": step, "plan": plan}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)  # a crash leaves the old file or the new one, whole


def load(path: Path, model: nn.Module, optimizer: Optimizer, plan: Plan) -> int:
    """Rank 0 reads the checkpoint, all ranks get theirs of it. The steps done; 0 without one."""
    state: dict[str, Any] = {}
    if dist.get_rank() == 0 and path.exists():
        state = torch.load(path, map_location="cpu", weights_only=True)  # data, no code
    told: list[Any] = [state.get("step", 0), state.get("plan", plan)]
    dist.broadcast_object_list(told)
    step, saved = int(told[0]), told[1]
    if saved != plan:  # its steps had other samples: which are done would be wrong
        raise SystemExit(f"{path} has {saved}, this training {plan}: give another --checkpoint")
    if step == 0:
        return 0
    # Each by itself: set_state_dict would load nothing where the given weights are empty.
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    set_model_state_dict(model, state.get("model", {}), options=options)
    set_optimizer_state_dict(model, optimizer, state.get("optimizer", {}), options=options)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate  # as the command line says now
    return step


def listen() -> list[int]:
    """The warnings that come to this rank, from now on."""
    heard: list[int] = []
    if REQUEUE:
        if dist.get_rank() == 0:  # torchrun warns when a node joins, and begins again by itself
            Path(REQUEUE).unlink(missing_ok=True)
        for warning in (signal.SIGUSR2, signal.SIGTERM):  # before the time limit; when preempted
            signal.signal(warning, lambda number, _: heard.append(number))
    return heard


def any_warned(heard: list[int], device: torch.device) -> bool:
    """Whether a rank has been warned: all ranks save after the same step. A collective."""
    warnings = torch.tensor(len(heard), device=device)
    if REQUEUE:
        dist.all_reduce(warnings)
    return bool(warnings)


def train(options: argparse.Namespace, device: torch.device) -> None:
    """From the data to the last step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    data, held_out = dataset(train=True), dataset(train=False)
    batch, micro = options.batch_size, options.micro_batch
    if batch % (micro * world):
        wanted = f"a multiple of --micro-batch {micro} x {world} ranks"
        raise SystemExit(f"--batch-size {batch} must be {wanted}")
    accumulate, steps_per_epoch = batch // (micro * world), len(data) // batch
    if steps_per_epoch == 0:
        raise SystemExit(f"--batch-size {batch} is more than the {len(data)} samples there are")
    # An epoch's last, incomplete batch is left out on all ranks; each epoch it is another one.
    sampler = EpochSampler(data, world, rank, seed=options.seed, drop_last=True)
    loader = DataLoader(data, batch_size=micro, sampler=sampler, drop_last=True)

    heard = listen()
    torch.manual_seed(options.seed)  # the same weights on every rank
    model = wrap(Model().to(device), device)
    optimizer = AdamW(model.parameters(), lr=options.lr)  # after wrapping
    plan = {"batch size": batch, "seed": options.seed, "samples": len(data)}
    step, last = load(options.checkpoint, model, optimizer, plan), options.epochs * steps_per_epoch
    if rank == 0:
        share = f"{accumulate} x {micro} samples of a step on each"
        print(
            f"{world} ranks on {device.type}, {share}, {step} of {last} steps are done", flush=True
        )

    for epoch in range(step // steps_per_epoch, options.epochs):
        sampler.set_epoch(epoch)  # else every epoch has the order of the first
        sampler.done = step % steps_per_epoch * batch // world
        batches, before, started = iter(loader), step, time.perf_counter()
        while step < (epoch + 1) * steps_per_epoch:
            step += 1
            # Dropout: another one on each rank and step, and the same one after a restart.
            torch.manual_seed(options.seed + step * world + rank)
            own = [[part.to(device) for part in pair] for pair in islice(batches, accumulate)]
            loss, norm = take_step(model, optimizer, own, options.clip)
            if rank == 0 and step % options.log_every == 0:
                print(f"step {step:>5}  loss {loss:.6f}  gradient {norm:.4f}", flush=True)
            ending = step < last and any_warned(heard, device)
            if ending or step % options.save_every == 0 or step == last:
                save(options.checkpoint, model, optimizer, step, plan)
            if ending:
                if rank == 0 and REQUEUE:
                    Path(REQUEUE).touch()
                return
        speed = (step - before) * batch / (time.perf_counter() - started)
        mean, accuracy = evaluate(model, held_out, micro, device)
        if rank == 0:
            print(
                f"epoch {epoch + 1:>4}  held out: loss {mean:.6f}, accuracy {accuracy:.4f}  "
                f"{speed:.0f} samples/s",
                flush=True,
            )


if __name__ == "__main__":
    options = parse()
    train(options, join())
    leave()  # not where training raised: the others may be in a collective, and this would wait

"""Whether all nodes have the same software: Python, torch, its backends, the code, variables."""

from collections.abc import Mapping
from typing import Any

from lab.doctor.check import Check, listed
from lab.doctor.examined import Examined, groups

INSTALL = {
    "docker": "lab build makes the image anew, and lab up the nodes",
    "ssh": "lab deploy gives all hosts the same",
    "slurm": "name an environment that has it: slurm.venv, slurm.conda, slurm.python",
    "local": "pip install torch, in the environment that lab runs in",
}
"""How nodes get the same software."""
VARY = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA")
"""Variables that may well differ: what they name is called differently on other hosts."""


def python(exam: Examined) -> list[Check]:
    """Whether all have one Python, by its first two numbers: pickles and bytecode go between."""
    versions = exam.values("python")
    series = {name: version.rpartition(".")[0] for name, version in versions.items()}
    return _same(exam, "python", series, versions)


def torch(exam: Examined) -> list[Check]:
    """Whether torch can be imported everywhere, and is the same."""
    errors = {name: answer["error"] for name, answer in exam.torch.items() if "error" in answer}
    checks = [
        Check("torch", "fail", f"{listed(nodes)}: import torch: {error}", nodes, INSTALL[exam.on])
        for error, nodes in groups(errors).items()
    ]
    if not_deployed(exam):
        found = f"it is not on {listed(tuple(errors))} yet"
        checks = [
            Check("torch", "warn", found, tuple(errors), "lab run installs it, or lab deploy")
        ]
    versions = {n: answer["version"] for n, answer in exam.torch.items() if "error" not in answer}
    return [*checks, *_same(exam, "torch", versions, versions)]


def not_deployed(exam: Examined) -> bool:
    """Whether hosts lack torch only because lab has not installed it yet."""
    new = all(code is None for code in exam.values("code").values())
    errors = [answer for answer in exam.torch.values() if "error" in answer]
    return exam.on == "ssh" and new and bool(errors) and all("missing" in one for one in errors)


def backend(exam: Examined) -> list[Check]:
    """Whether what collectives go through is there and the same: gloo, or NCCL, CUDA, driver."""
    told = {name: answer for name, answer in exam.torch.items() if "error" not in answer}
    if not told:
        return []
    if exam.backend == "gloo":
        lack = tuple(name for name, answer in told.items() if not answer["gloo"])
        if lack:
            found = f"torch on {listed(lack)} was built without gloo"
            return [Check("backend", "fail", found, lack, INSTALL[exam.on])]
        if all(answer["gpus"] for answer in told.values()):
            found = "gloo, though every node has GPUs that torch can use"
            cure = "backend: nccl in the topology, or --backend nccl"
            return [Check("backend", "warn", found, tuple(told), cure)]
        return [Check("backend", "pass", "gloo", tuple(told))]
    lack = tuple(name for name, answer in told.items() if answer["nccl"] is None)
    if lack:
        found = f"torch on {listed(lack)} has no NCCL that works: no GPU, or a build for CPUs"
        cure = "a build of torch for CUDA, and a driver; or --backend gloo"
        return [Check("backend", "fail", found, lack, cure)]
    together = {
        name: f"NCCL {answer['nccl']}, CUDA {answer['cuda']}" for name, answer in told.items()
    }
    checks = _same(exam, "backend", together, together)
    drivers = {name: gpus[0]["driver"] for name, gpus in exam.values("gpus").items() if gpus}
    if len(groups(drivers)) > 1:
        words = _in_words(groups(drivers))
        checks.append(
            Check("driver", "warn", words, tuple(drivers), "install one driver everywhere")
        )
    return checks


def code(exam: Examined) -> list[Check]:
    """Whether the project's files are the same on all nodes."""
    codes = exam.values("code")
    lack = tuple(name for name, one in codes.items() if one is None)
    if not codes or (len(lack) == len(codes) and exam.on == "ssh"):
        found = "nothing is deployed yet; lab run sends it"
        return [Check("code", "pass", found, exam.seen)] if codes else []
    if lack:
        cure = "lab deploy" if exam.on == "ssh" else "all nodes must see this folder, by one path"
        return [Check("code", "fail", f"it is not there on {listed(lack)}", lack, cure)]
    by_hash = groups({name: one["hash"] for name, one in codes.items()})
    usual, *others = by_hash.values()
    if not others:
        return [
            Check("code", "pass", f"{len(codes[usual[0]]['files'])} files, all equal", exam.seen)
        ]
    cure = "lab deploy" if exam.on == "ssh" else "make the files equal, or share one folder"
    return [
        Check("code", "fail", _difference(codes, usual[0], names), names, cure) for names in others
    ]


def _difference(codes: Mapping[str, Any], usual: str, names: tuple[str, ...]) -> str:
    """Which files are others on these nodes."""
    theirs, ours = codes[names[0]]["files"], codes[usual]["files"]
    files = sorted(f for f in theirs.keys() | ours.keys() if theirs.get(f) != ours.get(f))
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return f"{', '.join(files[:3])}{more} on {listed(names)} are not those of {usual}"


def environment(exam: Examined) -> list[Check]:
    """Whether variables of torch, NCCL, gloo and OpenMP are the same, and none is known to harm."""
    variables = exam.values("variables")
    checks = []
    for name in sorted({name for of in variables.values() for name in of} - set(VARY)):
        values = groups({node: of.get(name, "not set") for node, of in variables.items()})
        if len(values) > 1 and not _follows_cores(exam, name):
            odd = tuple(node for nodes in list(values.values())[1:] for node in nodes)
            cure = f"set it for all: env: {{{name}: ...}} in the topology"
            checks.append(Check("environment", "warn", f"{name} is {_in_words(values)}", odd, cure))
    detail = {node: of.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL" for node, of in variables.items()}
    if exam.backend == "gloo" and any(detail.values()):
        found = (
            "TORCH_DISTRIBUTED_DEBUG=DETAIL: with gloo, torch's DDP has been seen to crash by it"
        )
        nodes = tuple(node for node, on in detail.items() if on)
        checks.append(Check("environment", "warn", found, nodes, "take it out, or say INFO"))
    if variables and not checks:
        names = {name for of in variables.values() for name in of}
        found = ", ".join(sorted(names)) or "no variable of torch, NCCL, gloo or OpenMP is set"
        checks.append(Check("environment", "pass", found, exam.seen))
    return checks


def _follows_cores(exam: Examined, name: str) -> bool:
    """Threads are to differ where cores do, or how many ranks share them."""
    slots = {patient.slots for patient in exam.patients}
    differ = len(groups(exam.values("cores"))) > 1 or len(slots) > 1
    return differ and name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def _same(
    exam: Examined, name: str, kinds: Mapping[str, str], shown: Mapping[str, str]
) -> list[Check]:
    """Fails those nodes that have another one than most."""
    if not kinds:
        return []
    found = groups(kinds)
    if len(found) == 1:
        return [Check(name, "pass", ", ".join(groups(shown)), tuple(kinds))]
    odd = tuple(node for nodes in list(found.values())[1:] for node in nodes)
    return [Check(name, "fail", _in_words(groups(shown)), odd, INSTALL[exam.on])]


def _in_words(values: Mapping[str, tuple[str, ...]]) -> str:
    return "; ".join(f"{value} on {listed(nodes)}" for value, nodes in values.items())

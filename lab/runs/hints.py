"""What to do about failures that have one usual cause."""

import difflib
import re
import shlex
import sys
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path

from lab.node.victims import VICTIM_PATIENCE
from lab.runs.job import Job
from lab.runs.verdict import SPAWN_EXCEPTION, Failure, ranks_in_words

_NEW_FILE = "requirements.txt"
_MISSING = re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '?([\w.]+)'?")
PACKAGES: Mapping[str, str] = {
    "Crypto": "pycryptodome",
    "Levenshtein": "python-Levenshtein",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "PyMuPDF",
    "git": "GitPython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "igraph": "python-igraph",
    "imblearn": "imbalanced-learn",
    "jwt": "PyJWT",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "nacl": "PyNaCl",
    "osgeo": "GDAL",
    "pkg_resources": "setuptools",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skopt": "scikit-optimize",
    "slugify": "python-slugify",
    "socks": "PySocks",
    "umap": "umap-learn",
    "websocket": "websocket-client",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}
"""Modules whose package has another name."""

NO_GPU_SIGNS = (
    "_cuda_setDevice",
    "Attempting to deserialize object on a CUDA device",
    "Cannot access accelerator device when none is available",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "ProcessGroupNCCL is only supported with GPUs",
    "Torch not compiled with CUDA enabled",
    "doesn't have NCCL built in",
    "no CUDA-capable device",
)
"""What torch says where a script wants a GPU and there is none."""


TOO_SMALL = re.compile(r"rank < size\. (\d+) vs (\d+)")
"""What gloo says to a rank that joins a world in which it has no place."""

CUDA_BUILD_SIGNS = (
    "libcudart.so",
    "libtorch_cuda.so",
    "operator torchaudio::",
    "operator torchvision::",
)
"""What is said where a package was built for torch with CUDA, and torch is the CPU build."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds; docker/install-torch takes torch from it."""


def hint_for(failure: Failure, job: Job) -> str | None:
    """One line that says what to do; None where nobody can know.

    Args:
        failure: the first real failure of a run.
        job: what the run was to do.
    """
    if failure.exception is None or failure.message is None:
        return None
    said = f"{failure.exception}: {failure.message}".strip().splitlines()
    missing = _MISSING.search(said[-1 if failure.exception == SPAWN_EXCEPTION else 0])
    if missing and job.command[0] == "-m" and failure.file is None:
        return _missing_target(job.command[1], job.start_folder)
    if missing:
        return _missing_module(missing[1], job)
    too_small = TOO_SMALL.search(failure.message)
    if too_small:
        return (
            f"rank {too_small[1]} has joined a world of {too_small[2]}, which has no place for it: "
            "leave rank and world_size out of init_process_group, or take them from RANK and "
            "WORLD_SIZE, which the launcher has set"
        )
    if any(sign in failure.message for sign in CUDA_BUILD_SIGNS):
        return (
            "a package is there in its build for CUDA, and the nodes' torch is the CPU build: put "
            f"the line --extra-index-url {CPU_INDEX} into {job.requirements or _NEW_FILE}, whose "
            "builds are preferred then"
        )
    if any(sign in failure.message for sign in NO_GPU_SIGNS):
        where = f"{failure.file}:{failure.line}" if failure.file else "the script"
        return (
            f"{where} asks for CUDA or nccl, and rank {failure.rank} on {failure.node} has no GPU: "
            "use the backend gloo and the device cpu where torch.cuda.is_available() is false"
        )
    return None


def hint_for_victim(
    failure: Failure,
    ended_well: Collection[int],
    ended: Collection[int],
    left: Collection[int] = (),
) -> str | None:
    """One line about a failure that tells of another rank, where no other one was the cause.

    Args:
        failure: the first failure of a run.
        ended_well: ranks that had ended with 0.
        ended: ranks that lab ended after it had waited for one of them to say why.
        left: ranks that are known to have left the others before.
    """
    if not failure.looks_like_victim:
        return None
    told = "this is what happens to a rank when it misses another"
    if ended_well:
        return f"{told}: {ranks_in_words(ended_well)} had ended before, with code 0"
    if left:
        return f"{told}: {ranks_in_words(left)} had left before"
    if ended:
        return (
            f"{told}, but none has failed by itself in {VICTIM_PATIENCE:g} s; "
            f"{ranks_in_words(ended)} still ran then, and lab has ended what was left"
        )
    return f"{told}, but none has failed by itself"


def _missing_target(name: str, folder: Path) -> str:
    """Of the module that is to be run: no package's, as a rule, but a name with a slip in it."""
    said = f"there is no module {name} in {folder}, and none among the installed ones"
    *parents, last = name.split(".")
    for depth, parent in enumerate(parents):
        if not (folder / parent).is_dir():
            parents, last = parents[:depth], parent
            break
        folder /= parent
    there = {path.stem for path in folder.glob("*.py")} if folder.is_dir() else set()
    there |= {path.parent.name for path in folder.glob("*/*.py")}
    close = difflib.get_close_matches(last, sorted(there), 1)
    return said + "".join(f"; there is {'.'.join([*parents, found])}" for found in close)


def _missing_module(name: str, job: Job) -> str:
    top = name.partition(".")[0]
    folder = job.start_folder
    if top in sys.stdlib_module_names:
        return f"{top} is part of Python, but of a Python built without it on that node"
    own = [path for path in (folder / top, folder / f"{top}.py") if path.exists()]
    if own:
        return (
            f"{own[0]} is there, but Python looks beside the script: "
            f"run it as a module (-m), or add --env PYTHONPATH={folder}"
        )
    package = package_of(name)
    file = shlex.quote(str(job.requirements or _NEW_FILE))
    again = f"lab run --requirements {file} ..."
    if package is None:  # one of that name may be anybody's
        return (
            f"there is no {top} in {folder}, and no package that is known to have it: put the file "
            f"beside the script, or the package's name into {file}; {again}"
        )
    return f"the module {name} is in the package {package}: echo {package} >> {file}; {again}"


def package_of(module: str) -> str | None:
    """The package that has a module: by our table, else as installed here; None: nobody knows."""
    top = module.partition(".")[0]
    known = PACKAGES.get(module) or PACKAGES.get(top)
    if known is not None:
        return known
    installed = metadata.packages_distributions().get(top, ())
    return installed[0] if len(installed) == 1 else None

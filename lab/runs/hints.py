"""What to do about failures that have one usual cause."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from lab.runs.verdict import Failure

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


def hint_for(failure: Failure, on: str, folder: Path) -> str | None:
    """One line that says what to do; None where nobody can know.

    Args:
        failure: the first real failure of a run.
        on: the kind of place it ran in.
        folder: where the ranks started.
    """
    if failure.exception is None or failure.message is None:
        return None
    missing = re.match(r"No module named '?([\w.]+)'?", failure.message)
    if missing and failure.exception in ("ModuleNotFoundError", "ImportError"):
        return _missing_module(missing[1], on, folder)
    if any(sign in failure.message for sign in NO_GPU_SIGNS):
        where = f"{failure.file}:{failure.line}" if failure.file else "the script"
        return (
            f"{where} asks for CUDA or nccl, and rank {failure.rank} on {failure.node} has no GPU: "
            "use the backend gloo and the device cpu where torch.cuda.is_available() is false"
        )
    return None


def _missing_module(name: str, on: str, folder: Path) -> str:
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"{top} is part of Python, but of a Python built without it on that node"
    own = [path for path in (folder / top, folder / f"{top}.py") if path.exists()]
    if own:
        return (
            f"{own[0]} is there, but Python looks beside the script: "
            f"run it as a module (-m), or add --env PYTHONPATH={folder}"
        )
    package = PACKAGES.get(name) or PACKAGES.get(top) or top.replace("_", "-")
    if on == "docker":
        cure = f"put {package} into a file and build it into the nodes: lab build --requirements"
        return f"the module {name} is in the package {package}; {cure} FILE"
    return (
        f"the module {name} is in the package {package}: {sys.executable} -m pip install {package}"
    )

"""The packages of the hosts: resolved and fetched on this machine, carried as wheels.

So a host needs no internet and no pip, and all hosts get the very same files. What there is to be
is said where the nodes' image takes it from: docker/install-torch and docker/requirements.txt.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lab.cache import wheels_folder
from lab.deploy.requirements import Requirements
from lab.errors import LabError
from lab.packaged import packaged
from lab.temporary import TemporaryFolder

CPU_INDEX = re.compile(r"\$\{TORCH_INDEX_URL:-(\S+)\}")
OWN_PACKAGES = "a host whose own Python has torch keeps that, and gets only what you require"
_OF_TORCH = ("torch-", "nvidia_", "triton-")
_OLDEST_GLIBC = 5
"""manylinux_2_5, the first of its kind (PEP 600)."""


@dataclass(frozen=True)
class Platform:
    """What decides which wheels fit a host."""

    python: str
    """Its minor version: `3.11`."""
    machine: str
    """As uname(1) says it."""
    glibc: str
    """Its version; empty where the C library is another."""
    cuda: bool
    """Whether there are GPUs: torch comes with CUDA, then, else without."""
    torch: str | None
    """The version that the host's Python has by itself. It stays, then, with all beside it."""

    @classmethod
    def of(cls, host: dict[str, Any]) -> "Platform":
        """As the program on a host tells it."""
        python = ".".join(host["python"].split(".")[:2])
        name, version = host["libc"]
        glibc = version if name == "glibc" else ""
        return cls(python, host["machine"], glibc, host["cuda"], host["torch"])

    def pip_options(self) -> list[str]:
        """What makes pip choose for this platform rather than for the one that it runs on."""
        tag = "cp" + self.python.replace(".", "")
        options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={self.python}"]
        options += [f"--abi={abi}" for abi in (tag, "abi3", "none")]
        newest = int(self.glibc.split(".")[1])
        names = [f"manylinux_2_{minor}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
        names += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
        return options + [f"--platform={name}_{self.machine}" for name in names]


@dataclass(frozen=True)
class Wheel:
    """One package's file."""

    name: str
    hash: str
    """SHA-256, in hex."""
    size: int
    unpacked: int
    """Bytes that it takes where it is installed."""


@dataclass(frozen=True)
class Environment:
    """A set of packages for one platform."""

    key: str
    """Stands for the packages and the platform."""
    own: bool
    """Whether the packages of the host's own Python are in it."""
    folder: Path
    """Where the wheels are, on this machine."""
    requirements: Requirements | None = None
    """What the user wants in it."""
    wheels: tuple[Wheel, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """As the program on the host takes it."""
        wanted = self.requirements
        return {
            "key": self.key,
            "own": self.own,
            "wheels": [asdict(one) for one in self.wheels],
            "requirements": None if wanted is None else [str(wanted.path), *wanted.lines],
        }


@dataclass(frozen=True)
class Packages:
    """What every host shall have."""

    torch: str
    """Its version."""
    pinned: str
    """The rest, as pip takes it."""
    requirements: Requirements | None = None
    """What the user wants on top."""

    @classmethod
    def read(cls, requirements: Requirements | None) -> "Packages":
        """As the files of this lab say."""
        script = packaged("docker/install-torch").read_text()
        version = re.search(r"^VERSION=(\S+)$", script, re.MULTILINE)
        assert version is not None
        return cls(version[1], packaged("docker/requirements.txt").read_text(), requirements)

    def as_before(self, deployed: Sequence[str] | None) -> "Packages":
        """With the requirements of the version in use, where the user has named none now."""
        if self.requirements is not None or deployed is None:
            return self
        path, *lines = deployed
        return replace(self, requirements=Requirements(Path(path), tuple(lines)))

    def environment(self, platform: Platform) -> Environment:
        """Which environment a platform needs; its wheels are not known yet."""
        own = platform.torch is not None
        lines = [*asdict(platform).values(), self._wanted_beside if own else self._wanted]
        text = "\0".join(str(line) for line in lines)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        return Environment(key, own, wheels_folder() / key, self.requirements)

    @property
    def lines(self) -> list[str]:
        """All of it, a requirement a line."""
        return self._wanted.strip().splitlines()

    @property
    def _wanted_beside(self) -> str:
        return self.requirements.text if self.requirements is not None else ""

    @property
    def _wanted(self) -> str:
        pins = [line for line in self.pinned.splitlines() if not line.startswith("#")]
        return "\n".join([f"torch=={self.torch}", *pins, self._wanted_beside])

    def fetch(self, platform: Platform) -> Environment:
        """The environment with its wheels, fetched once and kept in the user's cache.

        Raises:
            LabError: they cannot be had.
        """
        bare = self.environment(platform)
        index = bare.folder / "index.json"
        if not index.exists() and (platform.torch is None or self.requirements is not None):
            self._fetch(bare, platform)
        found = json.loads(index.read_text()) if index.exists() else []
        wheels = tuple(Wheel(**wheel) for wheel in found)
        return replace(bare, wheels=wheels)

    def _fetch(self, environment: Environment, platform: Platform) -> None:
        if not platform.glibc:
            raise LabError(
                "packages can be carried to hosts with Linux and glibc alone: install torch there, "
                "and name that Python (ssh.python)"
            )
        folder = environment.folder
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFolder(folder.parent) as temporary:
            new = temporary / "wheels"
            new.mkdir()
            words = temporary / "requirements.txt"
            if platform.torch is None:
                words.write_text(f"{self.pinned}\n{self._wanted_beside}")
                first = [str(self._torch_wheel(platform, temporary))]
            else:
                words.write_text(self._wanted_beside)
                (temporary / "torch.txt").write_text(f"torch=={platform.torch}\n")
                first = ["-c", str(temporary / "torch.txt")]
            self._download(platform, new, ["pip", *first, "-r", str(words)])
            for wheel in new.glob("*") if environment.own else ():
                if wheel.name.startswith(_OF_TORCH):  # the host has them
                    wheel.unlink()
            wheels = [asdict(_wheel(path)) for path in sorted(new.iterdir())]
            (new / "index.json").write_text(json.dumps(wheels, indent=1))
            if not (folder / "index.json").exists():  # else somebody else was faster
                new.rename(folder)

    def _torch_wheel(self, platform: Platform, folder: Path) -> Path:
        """As docker/install-torch decides, but for that platform."""
        here = os.environ.get("PIP_FIND_LINKS", "").split()
        tag = "cp" + platform.python.replace(".", "")
        pattern = f"torch-{self.torch}[+-]*-{tag}-{tag}-*_{platform.machine}.whl"
        wheels = [] if platform.cuda else [w for one in here for w in Path(one).glob(pattern)]
        if wheels:
            return wheels[-1]
        default = CPU_INDEX.search(packaged("docker/install-torch").read_text())
        assert default is not None
        index = os.environ.get("TORCH_INDEX_URL") or default[1]
        source = [] if platform.cuda else ["--index-url", index]
        self._download(platform, folder, ["--no-deps", *source, f"torch=={self.torch}"])
        return next(folder.glob("torch-*.whl"))

    def _download(self, platform: Platform, folder: Path, what: Sequence[str]) -> None:
        argv = [sys.executable, "-P", "-m", "pip", "download", "--no-input", "--dest", str(folder)]
        done = subprocess.run(
            [*argv, *platform.pip_options(), *what],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode == 0:
            return
        output = done.stdout.splitlines()
        if self.requirements is not None:
            raise LabError(self.requirements.failure(output, platform.torch or self.torch))
        errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
        reason = [*errors, *output[-1:], "pip said nothing"][0]
        raise LabError(
            f"the packages for Python {platform.python} on {platform.machine} cannot be fetched: "
            f"{reason}; look at the network and at pip's settings (PIP_INDEX_URL, PIP_FIND_LINKS, "
            "TORCH_INDEX_URL), or install torch on the hosts and name that Python (ssh.python)"
        )


def _wheel(path: Path) -> Wheel:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    return Wheel(path.name, digest, path.stat().st_size, unpacked)

"""What the image of the nodes is built from: staged files, from a checkout or a wheel of lab."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lab
from lab.deploy.requirements import Requirements
from lab.packaged import packaged
from lab.temporary import TemporaryFolder

DOCKERFILE = "docker/node.Dockerfile"
USER_REQUIREMENTS = "docker/user-requirements.txt"
ASSETS = (
    DOCKERFILE,
    "docker/node.Dockerfile.dockerignore",
    "docker/node-entrypoint",
    "docker/install-torch",
    "docker/requirements.txt",
    "docker/slurm-entrypoint",
    "docker/with-local",
    USER_REQUIREMENTS,
)
_CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PIP_VARIABLES = {
    "PIP_INDEX_URL": "index-url",
    "PIP_EXTRA_INDEX_URL": "extra-index-url",
    "PIP_TRUSTED_HOST": "trusted-host",
    "PIP_DEFAULT_TIMEOUT": "timeout",
    "PIP_PROXY": "proxy",
}


def sources() -> dict[str, Path]:
    """All files of the build's context by their name in it."""
    files = {name: packaged(name) for name in ASSETS}
    package = Path(lab.__file__).parent
    for path in package.rglob("*"):
        inside = path.relative_to(package)
        if path.is_file() and "__pycache__" not in inside.parts and inside.parts[0] != "assets":
            files[f"lab/{inside.as_posix()}"] = path
    return files


@contextmanager
def staged_context(requirements: Requirements | None = None) -> Iterator[Path]:
    """A folder with the build's context, which goes when the block ends."""
    with TemporaryFolder() as context:
        for inside, path in sources().items():
            target = context / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            # The same mode whatever the umask, so that the layers are found again.
            target.chmod(0o755 if os.access(path, os.X_OK) else 0o644)
        if requirements is not None:
            (context / USER_REQUIREMENTS).write_text(requirements.text)
        fill_local(context / "docker/local")
        yield context


def fill_local(local: Path) -> None:
    """Put there what this machine hands to the build: see docker/local/README.md."""
    local.mkdir(parents=True, exist_ok=True)
    given = packaged("docker/local")
    if given.is_dir() and given.resolve() != local.resolve():
        shutil.copytree(given, local, copy_function=_link, dirs_exist_ok=True)
    for folder in os.environ.get("PIP_FIND_LINKS", "").split():
        for wheel in Path(folder).glob("torch-*linux*.whl"):
            (local / "wheels").mkdir(exist_ok=True)
            if not (local / "wheels" / wheel.name).exists():
                _link(str(wheel), str(local / "wheels" / wheel.name))
    bundles = (Path(os.environ[name]) for name in _CA_VARIABLES if os.environ.get(name))
    bundle = next((path for path in bundles if path.is_file()), None)
    if bundle is not None and not (local / "ca.crt").exists():
        shutil.copyfile(bundle, local / "ca.crt")
    lines = [f"{key} = {value}" for name, key in _PIP_VARIABLES.items() if (value := _http(name))]
    if lines and not (local / "pip.conf").exists():
        (local / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))


def _http(variable: str) -> str:
    """A variable's words without those that only mean something on this machine."""
    return " ".join(w for w in os.environ.get(variable, "").split() if not w.startswith("file:"))


def _link(source: str, target: str) -> str:
    """A hard link where it can be one: wheels are large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target

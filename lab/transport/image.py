"""The image of the nodes: found by what it is made of, and built where it is not there yet.

The tag is a hash of all that goes into the image, so a changed line of lab's code is another image,
and `lab up` never runs yesterday's code. Built with BuildKit by the docker command, from a staged
context, so that the same works from a checkout and from an installed wheel.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lab
from lab.errors import LabError, UsageError
from lab.transport.base import Progress
from lab.transport.containers import LABEL

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

REPOSITORY = "multinode-lab/node"
DOCKERFILE = "docker/node.Dockerfile"
USER_REQUIREMENTS = "docker/user-requirements.txt"
ASSETS = (
    DOCKERFILE,
    "docker/node.Dockerfile.dockerignore",
    "docker/node-entrypoint",
    "docker/install-torch",
    "docker/requirements.txt",
    "docker/with-local",
    USER_REQUIREMENTS,
)
LOG_LINES_SHOWN = 25
_STEP = re.compile(r"#(\d+) \[ *(\d+/\d+)\] (.*)")
_STEP_SPEAKS = re.compile(r"#(\d+) \d+\.\d+ ")
_CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PIP_VARIABLES = {
    "PIP_INDEX_URL": "index-url",
    "PIP_EXTRA_INDEX_URL": "extra-index-url",
    "PIP_TRUSTED_HOST": "trusted-host",
    "PIP_DEFAULT_TIMEOUT": "timeout",
    "PIP_PROXY": "proxy",
}


def ensure_image(
    client: "DockerClient", workdir: Path, progress: Progress, requirements: Path | None = None
) -> str:
    """The tag of the image for the nodes of a working directory; builds it where it is missing.

    `requirements` goes on top; where it is None, what `lab build --requirements` last took for this
    working directory stays in force.

    Raises:
        LabError: it cannot be built; with the end of the build's output.
        UsageError: the requirements file is not there.
    """
    if requirements is None:
        requirements = chosen_requirements(client, workdir)
    labels = {f"{LABEL}.image": lab.__version__}
    if requirements is not None:
        labels |= {
            f"{LABEL}.workdir": str(workdir),
            f"{LABEL}.requirements": str(requirements.resolve()),
        }
    tag = image_tag(requirements, workdir)
    if not client.images.list(name=tag):
        with staged_context(requirements) as context:
            _build(context, tag, labels, progress)
    return tag


def image_tag(requirements: Path | None = None, workdir: Path | None = None) -> str:
    """The tag that the present code and requirements have: equal content, equal tag."""
    digest = hashlib.sha256()
    for name, path in sorted(_sources(requirements).items()):
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    if requirements is not None:
        digest.update(str(workdir).encode())  # its label says for which folder it was chosen
    return f"{REPOSITORY}:{digest.hexdigest()[:12]}"


def chosen_requirements(client: "DockerClient", workdir: Path) -> Path | None:
    """The file that `lab build --requirements` last took for this working directory.

    Raises:
        UsageError: it has gone since.
    """
    images = _images(client, f"{LABEL}.workdir={workdir}")
    if not images:
        return None
    newest = max(images, key=lambda image: str(image.attrs["Created"]))
    path = Path(newest.labels[f"{LABEL}.requirements"])
    if not path.is_file():
        raise UsageError(
            f"{path} has gone, which `lab build --requirements` took for the nodes of this folder: "
            "put it back, or run `lab build` without it"
        )
    return path


def forget_requirements(client: "DockerClient", workdir: Path) -> None:
    """Have this working directory's nodes take the plain image again."""
    for image in _images(client, f"{LABEL}.workdir={workdir}"):
        for tag in image.tags:
            _remove(client, tag)


def stale_images(client: "DockerClient") -> list[str]:
    """Tags of images that lab made, that no container uses and that the present code is not.

    Images with requirements stay as long as their working directory is there: they say which
    requirements its nodes take.
    """
    used = {str(c.attrs["ImageID"]) for c in client.containers.list(all=True, sparse=True)}
    stale = []
    for image in _images(client, f"{LABEL}.image"):
        workdir = image.labels.get(f"{LABEL}.workdir")
        wanted = image_tag() in image.tags if workdir is None else _is_newest(client, image)
        if str(image.id) not in used and not wanted:
            stale += image.tags
    return stale


def _is_newest(client: "DockerClient", image: "Image") -> bool:
    workdir = image.labels[f"{LABEL}.workdir"]
    with suppress(OSError):  # of another user, perhaps: not ours to judge
        if not Path(workdir).exists():
            return False
    others = _images(client, f"{LABEL}.workdir={workdir}")
    return all(str(image.attrs["Created"]) >= str(other.attrs["Created"]) for other in others)


def remove_image(client: "DockerClient", tag: str) -> None:
    """Remove one; quiet where it is in use or gone."""
    _remove(client, tag)


def _remove(client: "DockerClient", tag: str) -> None:
    from docker.errors import APIError

    with suppress(APIError):
        client.images.remove(tag)


def _images(client: "DockerClient", label: str) -> list["Image"]:
    return [i for i in client.images.list(filters={"label": label}) if i.tags]


def _asset_root() -> Path:
    """Where `docker/` is: beside the package in a checkout, in the package in a wheel."""
    package = Path(lab.__file__).parent
    for root in (package.parent, package / "assets"):
        if (root / DOCKERFILE).is_file():
            return root
    raise LabError(f"{DOCKERFILE} is not in this installation of lab: install it again")


def _sources(requirements: Path | None) -> dict[str, Path]:
    """All files of the build's context by their name in it."""
    root = _asset_root()
    files = {name: root / name for name in ASSETS}
    if requirements is not None:
        if not requirements.is_file():
            raise UsageError(f"--requirements: there is no file {requirements}")
        files[USER_REQUIREMENTS] = requirements
    package = Path(lab.__file__).parent
    for path in package.rglob("*"):
        inside = path.relative_to(package)
        if path.is_file() and "__pycache__" not in inside.parts and inside.parts[0] != "assets":
            files[f"lab/{inside.as_posix()}"] = path
    return files


@contextmanager
def staged_context(requirements: Path | None = None) -> Iterator[Path]:
    """A folder with the build's context, which goes when the block ends."""
    with tempfile.TemporaryDirectory(prefix="multinode-lab-") as name:
        context = Path(name)
        for inside, path in _sources(requirements).items():
            target = context / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            # The same mode whatever the umask, so that the layers are found again.
            target.chmod(0o755 if os.access(path, os.X_OK) else 0o644)
        fill_local(context / "docker/local")
        yield context


def fill_local(local: Path) -> None:
    """Put there what this machine hands to the build: see docker/local/README.md."""
    local.mkdir(parents=True, exist_ok=True)
    given = _asset_root() / "docker/local"
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


def _build(context: Path, tag: str, labels: dict[str, str], progress: Progress) -> None:
    progress("building the image of the nodes (some minutes the first time, then seconds)")
    argv = [
        *_builder(),
        "--progress=plain",
        f"--file={context / DOCKERFILE}",
        f"--tag={tag}",
        *(f"--label={key}={value}" for key, value in labels.items()),
    ]
    if index := os.environ.get("TORCH_INDEX_URL"):
        argv.append(f"--build-arg=TORCH_INDEX_URL={index}")
    tail: list[str] = []
    steps: dict[str, str] = {}
    with subprocess.Popen(
        [*argv, str(context)],
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                tail = [*tail, line.rstrip()][-LOG_LINES_SHOWN:]
                if step := _step(line, steps):
                    progress(f"image: {step}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise LabError("\n".join(["the image of the nodes cannot be built:", *tail]))


def _builder() -> Sequence[str]:
    if shutil.which("docker") is None:
        raise LabError(
            "building the image of the nodes needs the docker command (with BuildKit), which is "
            "not on PATH: see https://docs.docker.com/get-docker/"
        )
    found = subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False)
    # --load: with a builder that runs in a container the image would stay there otherwise.
    return ["docker", "buildx", "build", "--load"] if found.returncode == 0 else ["docker", "build"]


def _step(line: str, steps: dict[str, str]) -> str | None:
    """`step 4/12: RUN pip install`, as soon as that step says something.

    Steps whose result is there already are announced too, but say nothing; `steps` keeps what has
    been announced: number -> text.
    """
    if found := _STEP.match(line):
        text = " ".join(word for word in found[3].split() if not word.startswith("--mount="))
        steps[found[1]] = f"step {found[2]}: {text[:70]}"
    elif found := _STEP_SPEAKS.match(line):
        return steps.pop(found[1], None)
    return None

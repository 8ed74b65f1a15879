"""The image of the nodes: found by what it is made of, and built where it is not there yet.

The tag is a hash of all that goes into the image, so a changed line of lab's code is another image,
and `lab up` never runs yesterday's code.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lab
from lab.channel import Progress
from lab.deploy.requirements import Requirements
from lab.errors import UsageError
from lab.transport.containers import LABEL
from lab.transport.image_build import build_image
from lab.transport.image_context import sources, staged_context

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

REPOSITORY = "multinode-lab/node"


def ensure_image(
    client: "DockerClient",
    progress: Progress,
    requirements: Requirements | None = None,
    *,
    chosen_for: Path | None = None,
) -> str:
    """The tag of the image for nodes with these packages on top; builds it where it is missing.

    `chosen_for` names the working directory whose nodes take them from now on, until
    `forget_requirements`.

    Raises:
        LabError: it cannot be built.
    """
    labels = {f"{LABEL}.image": lab.__version__}
    if requirements is not None:
        labels[f"{LABEL}.requirements"] = str(requirements.path.resolve())
        if chosen_for is not None:
            labels[f"{LABEL}.workdir"] = str(chosen_for)
    tag = image_tag(requirements, chosen_for)
    if not client.images.list(name=tag):
        with staged_context(requirements) as context:
            build_image(context, tag, labels, requirements, progress)
    return tag


def image_tag(requirements: Requirements | None = None, chosen_for: Path | None = None) -> str:
    """The tag that the present code and requirements have: equal content, equal tag."""
    digest = hashlib.sha256()
    for name, path in sorted(sources().items()):
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    if requirements is not None:
        digest.update(requirements.text.encode())
        digest.update(str(chosen_for).encode())  # its label says for which folder it was chosen
    return f"{REPOSITORY}:{digest.hexdigest()[:12]}"


def chosen_requirements(client: "DockerClient", workdir: Path) -> Requirements | None:
    """What `lab build --requirements` last took for this working directory.

    Raises:
        UsageError: the file has gone since.
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
    return Requirements.read(path)


def forget_requirements(client: "DockerClient", workdir: Path) -> None:
    """Have this working directory's nodes take the plain image again."""
    for image in _images(client, f"{LABEL}.workdir={workdir}"):
        for tag in image.tags:
            client.images.remove(
                tag, force=True
            )  # though nodes run it: the next `up` replaces them


def stale_images(client: "DockerClient") -> list[str]:
    """Tags, else ids, of images that lab made, no container uses and nobody has chosen to keep.

    That is: not the plain one of the present code, nor what `lab build --requirements` last made
    for a working directory that is still there.
    """
    used = {str(c.attrs["ImageID"]) for c in client.containers.list(all=True, sparse=True)}
    stale = []
    for image in client.images.list(filters={"label": f"{LABEL}.image"}):
        workdir = image.labels.get(f"{LABEL}.workdir")
        wanted = image_tag() in image.tags if workdir is None else _is_newest(client, image)
        if str(image.id) not in used and not (image.tags and wanted):
            stale += image.tags or [str(image.id)]  # without a tag: forgotten while nodes ran it
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
    from docker.errors import APIError

    with suppress(APIError):
        client.images.remove(tag)


def _images(client: "DockerClient", label: str) -> list["Image"]:
    return [i for i in client.images.list(filters={"label": label}) if i.tags]

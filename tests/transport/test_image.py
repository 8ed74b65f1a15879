"""The image's name and context, and what the building machine hands in."""

import shutil
from pathlib import Path

import pytest

import lab
from lab.deploy.requirements import Requirements
from lab.errors import LabError
from lab.transport import image, image_build, image_context
from lab.transport.engine import connect


def test_the_context_is_all_that_the_dockerfile_copies(tmp_path: Path) -> None:
    with image_context.staged_context() as context:
        for name in image_context.ASSETS:
            assert (context / name).is_file()
        assert (context / "lab/node/agent.py").is_file()
        assert (context / "docker/node-entrypoint").stat().st_mode & 0o111
        assert not list(context.rglob("__pycache__"))
    assert not context.exists()


def copy_of_lab(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the image built from a copy that a test may change."""
    root = Path(lab.__file__).parent.parent
    for name in ("lab", "docker"):
        shutil.copytree(root / name, folder / name, symlinks=True)
    monkeypatch.setattr(lab, "__file__", str(folder / "lab/__init__.py"))


def test_the_tag_follows_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of_lab(tmp_path, monkeypatch)
    before = image.image_tag()
    assert image.image_tag() == before
    with (tmp_path / "lab/node/agent.py").open("a") as file:
        file.write("# changed\n")
    changed = image.image_tag()
    assert changed != before
    (tmp_path / "docker/local/more").write_text("what is handed in is not in the image")
    assert image.image_tag() == changed


def test_requirements_make_another_tag(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("six\n")
    wanted = Requirements.read(file)
    assert image.image_tag(wanted) != image.image_tag()
    assert image.image_tag(wanted, tmp_path) != image.image_tag(wanted)
    with image_context.staged_context(wanted) as context:
        assert (context / image_context.USER_REQUIREMENTS).read_text() == "six\n"


def test_what_the_machine_has_is_handed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "numpy-1-linux.whl"):
        (wheels / name).write_text("")
    (tmp_path / "bundle.pem").write_text("a CA")
    for name in (*image_context._CA_VARIABLES, *image_context._PIP_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{wheels} https://example.org/wheels")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "bundle.pem"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip.example.org/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///mirror https://more.example.org")
    local = tmp_path / "local"
    image_context.fill_local(local)
    assert [p.name for p in (local / "wheels").iterdir()] == [
        "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    ]
    assert (local / "ca.crt").read_text() == "a CA"
    assert (local / "pip.conf").read_text() == (
        "[global]\nindex-url = https://pip.example.org/simple\n"
        "extra-index-url = https://more.example.org\n"
    )


def test_steps_of_the_build_are_told_once_they_work() -> None:
    steps: dict[str, str] = {}
    lines = [
        "#8 [ 4/12] RUN --mount=type=bind,source=a,target=/b   pip install x",
        "#9 [ 5/12] COPY lab /opt/lab/lab",
        "#9 CACHED",
        "#8 0.512 Collecting x",
        "#8 0.600 Collecting y",
    ]
    assert [image_build._step(line, steps) for line in lines] == [
        None,
        None,
        None,
        "step 4/12: RUN pip install x",
        None,
    ]


BUILDKIT = """\
#3 [internal] load metadata for docker.io/library/debian:nosuch
#3 ERROR: failed to do request: Head "https://example.org": no such host
------
 > [internal] load metadata for docker.io/library/debian:nosuch:
------
ERROR: failed to solve: rpc error: code = Unknown desc = failed to solve with frontend d.v0: \
failed to create LLB definition: failed to do request: Head "https://example.org": no such host
"""
FULL = """\
#9 1.2 E: Write error - write (28: No space left on device)
ERROR: failed to solve: process "/bin/sh -c apt-get update" did not complete: exit code: 100
"""


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            BUILDKIT,
            'its base image debian:nosuch cannot be had: Head "https://example.org": no such host; '
            "look at the network, or bring it to this engine: docker pull, docker load (",
        ),
        (FULL, 'process "/bin/sh -c apt-get update" did not complete: exit code: 100; free some'),
        ("#9 fatal\n", "the image of the nodes cannot be built: #9 fatal; see why, then try again"),
    ],
)
def test_a_build_that_fails(
    output: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = image_build._why(output.splitlines(), None)
    assert words in told
    assert "\n" not in told
    log = tmp_path / "multinode-lab/build.log"
    assert told.endswith(f"(all of its output: {log})")
    assert log.read_text() == output


@pytest.mark.docker
def test_a_base_image_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of_lab(tmp_path, monkeypatch)
    dockerfile = tmp_path / "docker/node.Dockerfile"
    base = "FROM multinode-lab-test/nosuch:1"
    dockerfile.write_text(dockerfile.read_text().replace("FROM debian:bookworm-slim", base))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(LabError, match="its base image multinode-lab-test/nosuch:1 cannot be had"):
        image.ensure_image(connect(), lambda _line: None)

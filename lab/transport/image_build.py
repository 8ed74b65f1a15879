"""Building the image of the nodes with the docker command, and what went wrong in words."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.cache import cache_folder
from lab.channel import Progress
from lab.deploy.requirements import Requirements
from lab.errors import LabError
from lab.transport.image_context import DOCKERFILE

_STEP = re.compile(r"#(\d+) \[ *(\d+/\d+)\] (.*)")
_STEP_SPEAKS = re.compile(r"#(\d+) \d+\.\d+ ")
_BASE_FAILED = re.compile(r" > \[internal\] load metadata for (?:docker\.io/)?(?:library/)?(\S+):$")
_WRAPPERS = re.compile(
    r"^(failed to solve(?: with frontend \S+)?: |rpc error: code = \w+ desc = "
    r"|failed to create LLB definition: |failed to do request: )+"
)
"""What layer after layer of the builder puts in front of the reason."""
_TORCH_STAYS = re.compile(r"\(constraint\) .*torch.*==([\w.+]+)")


def build_image(
    context: Path,
    tag: str,
    labels: Mapping[str, str],
    requirements: Requirements | None,
    progress: Progress,
    *,
    dockerfile: str = DOCKERFILE,
    arguments: Mapping[str, str] | None = None,
    target: str | None = None,
) -> None:
    """Build what lies in `context`.

    `dockerfile` is in it; `arguments` are those of the build; `target` is the stage to build,
    if not the last.

    Raises:
        LabError: it cannot be built; in one line, that names the file with all of the output.
    """
    progress("building the image of the nodes (some minutes the first time, then seconds)")
    argv = [
        *_builder(),
        "--progress=plain",
        f"--file={context / dockerfile}",
        f"--tag={tag}",
        *([f"--target={target}"] if target is not None else []),
        *(f"--build-arg={key}={value}" for key, value in (arguments or {}).items()),
        *(f"--label={key}={value}" for key, value in labels.items()),
    ]
    if index := os.environ.get("TORCH_INDEX_URL"):
        argv.append(f"--build-arg=TORCH_INDEX_URL={index}")
    output: list[str] = []
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
                output.append(line.rstrip())
                if step := _step(line, steps):
                    progress(f"image: {step}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise LabError(_why(output, requirements))


def _why(output: Sequence[str], requirements: Requirements | None) -> str:
    """One line on why a build failed."""
    reasons = [line for line in output if line.startswith("ERROR: ")]
    reason = reasons[-1].removeprefix("ERROR: ") if reasons else next(iter(output[-1:]), "?")
    if requirements is not None and "user-requirements.txt" in reason:
        found = [match[1] for line in output if (match := _TORCH_STAYS.search(line))]
        return requirements.failure(output, next(iter(found), None))
    reason = _WRAPPERS.sub("", reason)
    if bases := [match[1] for line in output if (match := _BASE_FAILED.match(line))]:
        reason = f"its base image {bases[-1]} cannot be had: {reason}"
        cure = "look at the network, or bring it to this engine: docker pull, docker load"
    elif "no space left on device" in "\n".join(output).lower():
        cure = "free some space: lab gc --images, docker system prune"
    else:
        cure = "see why, then try again: lab build"
    return f"the image of the nodes cannot be built: {reason}; {cure} ({_kept(output)})"


def _kept(output: Sequence[str]) -> str:
    """Where the output of a failed build can be read: the last one's only."""
    path = cache_folder() / "build.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*output, ""]))
    except OSError:
        return "its last words: " + " / ".join(output[-3:])
    return f"all of its output: {path}"


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

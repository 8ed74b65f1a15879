"""Packages on this host: a virtual environment for each set of them.

Made by hand rather than with `venv`: Debian's bare Python has neither venv's pip nor ensurepip.
"""

import contextlib
import fcntl
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

READY = "ready"
UNUSED_FOR = 86_400
"""Seconds after which an environment that no version uses goes."""
_SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def make_venv(folder: Path, paths: Sequence[str]) -> None:
    """A virtual environment of this Python that finds what is in `paths` behind its own.

    As PEP 405 has it: pyvenv.cfg, a link to the interpreter, a folder for packages.
    """
    base = Path(getattr(sys, "_base_executable", sys.executable))
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(base)
    version = ".".join(map(str, sys.version_info[:3]))
    config = f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
    (folder / "pyvenv.cfg").write_text(config)
    packages = folder / _SITE
    packages.mkdir(parents=True)
    calls = "; ".join(f"site.addsitedir({path!r})" for path in paths)
    (packages / "multinode-lab.pth").write_text(f"import site; {calls}\n")


def own_packages() -> list[str]:
    """Where the host's Python itself has its packages: those of an environment that adds none."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *user]


def install(
    folder: Path, wheels: Sequence[Path], pip: Path, own: bool, said: Callable[[str], None]
) -> str | None:
    """Make an environment of wheels, once: another deploy that makes it now is waited for.

    Args:
        folder: where; complete once `ready` is in it.
        wheels: all that it needs, resolved: nothing is looked for elsewhere.
        pip: pip's own wheel, from which it runs.
        own: whether the packages of this Python are in it, too.
        said: told pip's steps.

    Returns:
        Why it cannot be made; None where it is made.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / READY).exists():
            return None
        shutil.rmtree(folder, ignore_errors=True)
        make_venv(folder, own_packages() if own else ())
        python = str(folder / "bin/python")
        argv = [python, f"{pip}/pip", "install", "--no-index", "--no-deps", "--no-compile"]
        argv += ["--disable-pip-version-check", "--no-input", *map(str, wheels)]
        reason = _run(argv, said) if wheels else None
        said("importing torch")
        reason = reason or _run([python, "-c", "import torch"], lambda _: None)
        if reason is None:
            (folder / READY).touch()
        return reason


def remove_unused(workdir: Path) -> None:
    """Remove environments that no version of any project uses, and that are not just being made."""
    used = {link.resolve() for link in workdir.glob("*/releases/*/venv")}
    for folder in workdir.glob("envs/*/"):
        ready = folder / READY
        with contextlib.suppress(OSError):  # it is gone, or is being made
            if folder.resolve() not in used and time.time() - ready.stat().st_mtime > UNUSED_FOR:
                shutil.rmtree(folder)
                (folder.parent / f"{folder.name}.lock").unlink(missing_ok=True)


def _run(argv: Sequence[str], said: Callable[[str], None]) -> str | None:
    """Run a command; its last words if it failed."""
    words = ""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                words = line.strip() or words
                said(words)
        except BaseException:  # the controller has gone
            process.kill()
            raise
    return words if process.returncode else None

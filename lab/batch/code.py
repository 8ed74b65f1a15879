"""Lab's own code for the ranks: beside the runs, once for each content, and linked to by each."""

import contextlib
import io
import shutil
import tarfile
import tempfile
from pathlib import Path

from lab.errors import LabError
from lab.transport.ssh_bundle import bundle

CODE = "code"
FOLDER = f".{CODE}"


def link_code(run: Path) -> None:
    """Put it where all hosts find it: `runs/.code/NAME`, to which `runs/ID/code` leads.

    Raises:
        LabError: it cannot be written.
    """
    code = bundle()
    folder = run.parent / FOLDER / code.name
    # The link first: so `remove_unused` knows of us before we look.
    (run / CODE).symlink_to(Path("..") / FOLDER / code.name)
    if folder.is_dir():
        return
    folder.parent.mkdir(exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=run))
    with tarfile.open(fileobj=io.BytesIO(code.content), mode="r:") as archive:
        archive.extractall(temporary, filter="data")
    temporary.chmod(0o755)
    try:
        temporary.rename(folder)
    except OSError as error:
        shutil.rmtree(temporary)
        if not folder.is_dir():  # else somebody else has just done it
            raise LabError(f"{folder} cannot be made: {error.strerror}") from error


def remove_unused(runs: Path) -> None:
    """Remove what no run below `runs` links to any more."""
    folder = runs / FOLDER
    for code in set(folder.glob("*")) - _linked(runs):
        aside = code.with_name(f"{code.name}.removed")
        with contextlib.suppress(OSError):  # somebody else does the same
            code.rename(aside)
            if code in _linked(runs) and not code.exists():  # a run that has just begun
                aside.rename(code)
            else:
                shutil.rmtree(aside)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _linked(runs: Path) -> set[Path]:
    links = (link for link in runs.glob(f"*/{CODE}") if link.is_symlink())
    return {runs / FOLDER / link.readlink().name for link in links}

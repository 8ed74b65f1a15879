"""Which wheels a host gets. They are tiny ones in a folder; no index is asked."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from lab.deploy.packages import Packages, Platform
from lab.deploy.requirements import Requirements
from lab.errors import LabError

HOST = Platform(python="3.12", machine="x86_64", glibc="2.36", cuda=False, torch=None)
TAGS = {
    "torch-1.0+cpu": "cp312-cp312-manylinux_2_28_x86_64",
    "torch-1.0": "cp312-cp312-manylinux_2_28_aarch64",
    "tiny-2.0": "py3-none-any",
    "pip-99.0": "py3-none-any",
    "wish-1.0": "cp312-cp312-manylinux_2_34_x86_64",
    "wish-1.1": "cp312-cp312-manylinux_2_39_x86_64",
    "needs_torch-1.0": "py3-none-any",
}
NEEDS = {"needs_torch-1.0": "torch"}


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "links"
    folder.mkdir()
    for release, tag in TAGS.items():
        name, version = release.split("-")
        info = f"{name}-{version}.dist-info"
        needs = f"Requires-Dist: {NEEDS[release]}\n" if release in NEEDS else ""
        with zipfile.ZipFile(folder / f"{release}-{tag}.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", "x" * 1000)
            wheel.writestr(
                f"{info}/METADATA",
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
            )
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def packages(*lines: str) -> Packages:
    wanted = Requirements(Path("requirements.txt"), lines) if lines else None
    return Packages("1.0", "# pinned\ntiny==2.0\n", wanted)


def names(packages: Packages, platform: Platform = HOST) -> list[str]:
    return [wheel.name.split("-py")[0] for wheel in packages.fetch(platform).wheels]


def test_wheels_are_for_the_host_rather_than_for_this_python() -> None:
    assert names(packages()) == [
        "pip-99.0",
        "tiny-2.0",
        "torch-1.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl",
    ]


def test_they_are_fetched_once(wheels: Path) -> None:
    first = packages().fetch(HOST)
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert packages().fetch(HOST) == first
    assert all((first.folder / wheel.name).stat().st_size == wheel.size for wheel in first.wheels)
    assert all(wheel.unpacked > 1000 for wheel in first.wheels)


def test_the_hosts_c_library_decides_what_the_user_gets() -> None:
    assert "wish-1.0-cp312-cp312-manylinux_2_34_x86_64.whl" in names(packages("wish"))
    newer = replace(HOST, glibc="2.39")
    assert "wish-1.1-cp312-cp312-manylinux_2_39_x86_64.whl" in names(packages("wish"), newer)


def test_a_torch_that_the_host_has_stays() -> None:
    own = replace(HOST, torch="1.0+cpu")
    assert packages().fetch(own).wheels == ()
    assert packages().fetch(own).own
    assert names(packages("needs_torch"), own) == ["needs_torch-1.0", "pip-99.0"]


def test_what_decides_the_packages_decides_the_key() -> None:
    platforms = [
        HOST,
        replace(HOST, python="3.11"),
        replace(HOST, machine="aarch64"),
        replace(HOST, glibc="2.31"),
        replace(HOST, cuda=True),
        replace(HOST, torch="1.0"),
    ]
    keys = {packages().environment(platform).key for platform in platforms}
    keys |= {packages("wish").environment(platform).key for platform in platforms}
    keys.add(replace(packages(), torch="1.1").environment(HOST).key)
    assert len(keys) == 2 * len(platforms) + 1
    comment = replace(packages(), pinned="# other words\ntiny==2.0\n")
    assert comment.environment(HOST).key in keys


def test_requirements_stay_until_others_are_named() -> None:
    deployed = ["requirements.txt", "wish"]
    assert packages().as_before(deployed) == packages("wish")
    assert packages("tiny").as_before(deployed) == packages("tiny")
    assert packages().as_before(None) == packages()


def test_what_cannot_be_had_is_said_in_one_line() -> None:
    with pytest.raises(LabError, match=r"the packages of requirements\.txt cannot be installed"):
        packages("nowhere").fetch(HOST)
    with pytest.raises(LabError, match=r"for Python 3\.12 on x86_64 cannot be fetched: "):
        replace(packages(), pinned="nowhere==1\n").fetch(HOST)
    with pytest.raises(LabError, match="packages can be carried to hosts with Linux and glibc"):
        packages().fetch(replace(HOST, glibc=""))


def test_the_real_ones_are_those_of_the_image() -> None:
    real = Packages.read(None)
    assert real.torch.count(".") == 2
    assert any(line.startswith("scikit-learn==") for line in real.lines)

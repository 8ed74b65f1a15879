"""Which topology is meant, and files that cannot be read."""

from pathlib import Path

import pytest

from lab.topology import PRESETS, TopologyError, load_topology


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error(source: str | None) -> str:
    with pytest.raises(TopologyError) as caught:
        load_topology(source)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_without_a_name_it_is_the_preset_quad() -> None:
    assert load_topology() == load_topology("quad")


def test_without_a_name_lab_yaml_comes_first(folder: Path) -> None:
    (folder / "lab.yaml").write_text("nodes: 3\n")
    assert load_topology().nnodes == 3
    assert load_topology().name == "lab"


def test_a_file_gives_the_topology_its_name_unless_it_says_another(folder: Path) -> None:
    (folder / "big-one.yaml").write_text("nodes: 1\n")
    (folder / "big_one.yaml").write_text("nodes: 1\n")
    (folder / "named.yaml").write_text("name: x\nnodes: 1\n")
    names = [load_topology(f"{stem}.yaml").name for stem in ("big-one", "big_one", "named")]
    assert names == ["big-one", "lab", "x"]


def test_the_ending_of_a_file_may_be_left_out(folder: Path) -> None:
    (folder / "mine.yaml").write_text("nodes: 3")
    assert load_topology("mine").nnodes == 3
    assert load_topology("mine").name == "mine"
    (folder / "mine").write_text("nodes: 2")
    assert load_topology("mine").nnodes == 2


def test_a_file_named_like_a_preset_wants_its_path(folder: Path) -> None:
    (folder / "quad").write_text("nodes: 7\n")
    assert load_topology("quad").nnodes == 4
    assert load_topology("./quad").nnodes == 7


@pytest.mark.parametrize(
    ("preset", "nodes", "slots"),
    [("solo", 1, 1), ("pair", 2, 1), ("quad", 4, 1), ("quad2x2", 2, 2)],
)
def test_presets(preset: str, nodes: int, slots: int) -> None:
    topology = load_topology(preset)
    assert topology.name == preset
    assert [(n.name, n.slots) for n in topology.nodes] == [
        (f"node{i}", slots) for i in range(nodes)
    ]
    assert topology.on == "docker"
    assert (topology.docker.cpus, topology.docker.memory, topology.docker.shm) == (1, "2g", "256m")
    assert topology.job is not None
    assert topology.job.argv == ("-m", "lab.training.wine", "--epochs", "20")


def test_there_are_no_other_presets() -> None:
    import lab.topology

    files = (Path(lab.topology.__file__).parent / "presets").glob("*.yaml")
    assert sorted(file.stem for file in files) == sorted(PRESETS)


def test_a_missing_file(folder: Path) -> None:
    assert error("nowhere.yaml") == (
        "nowhere.yaml: no such file; must be a file or a preset: solo, pair, quad, quad2x2"
    )
    (folder / "cluster.yaml").write_text("nodes: 1\n")
    assert error("clutser.yaml").endswith("; did you mean 'cluster.yaml'?")
    assert error("quda").endswith("; did you mean 'quad'?")
    (folder / "compose.yaml").write_text("services:\n  web:\n    nodes: 1\n")
    assert "compose.yaml" not in error("compost.yaml")
    assert error("no/such/folder.yaml").startswith("no/such/folder.yaml: no such file")


def test_a_folder(folder: Path) -> None:
    (folder / "sub").mkdir()
    assert error("sub") == "sub: must be a file, and this is a folder"
    (folder / "sub" / "lab.yaml").write_text("nodes: 1\n")
    assert error("sub").endswith("; did you mean 'sub/lab.yaml'?")


def test_no_name_at_all() -> None:
    assert "is a folder" in error("") or "no such file" in error("")


def test_a_name_that_no_file_can_have() -> None:
    assert "cannot be read" in error("a\0b")
    assert "cannot be read" in error("x" * 5000)


def test_text_that_is_not_utf_8(folder: Path) -> None:
    (folder / "lab.yaml").write_bytes("nodes: 1\n# Zürich\n".encode("latin-1"))
    assert error(None) == "lab.yaml:2: must be text in UTF-8, and this is not"
    (folder / "lab.yaml").write_bytes("nodes: 1\n".encode("utf-16"))
    assert error(None) == "lab.yaml:1: must be text in UTF-8, and this is not"


def test_a_binary_file(folder: Path) -> None:
    (folder / "lab.yaml").write_bytes(b"\x7fELF\x01\x00\x00")
    assert error(None).startswith("lab.yaml:1: is no text: ")


def test_a_byte_order_mark_is_fine(folder: Path) -> None:
    (folder / "lab.yaml").write_text("nodes: 2\n", encoding="utf-8-sig")
    assert load_topology().nnodes == 2


def test_windows_line_ends_are_fine(folder: Path) -> None:
    (folder / "lab.yaml").write_bytes(b"nodes: 2\r\nslots: 0\r\n")
    assert error(None) == "lab.yaml:2: slots: found 0; must be at least 1"


def test_a_device_without_end() -> None:
    assert error("/dev/zero") == "/dev/zero: must be at most 32 MiB"

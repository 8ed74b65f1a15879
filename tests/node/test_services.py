"""What nvidia-smi says of links between GPUs."""

from lab.node.services import parse_links

MATRIX = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tSYS\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tNODE\tSYS\t0-47\t0\t\tN/A
GPU2\tSYS\tNODE\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""


def test_each_pair_once_by_its_kind() -> None:
    links = parse_links(MATRIX.splitlines())
    assert links == {"NV18": ["0-1"], "SYS": ["0-2"], "NODE": ["1-2"]}


def test_one_gpu_has_no_links() -> None:
    assert parse_links(["\tGPU0\tCPU Affinity", "GPU0\t X \t0-15"]) == {}

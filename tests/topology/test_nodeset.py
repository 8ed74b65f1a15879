"""Node sets: order, operators, and bounds that hold before anything is expanded."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.topology.nodeset import MAX_NODES, continue_set, count_names, expand_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[0-3]", ["node0", "node1", "node2", "node3"]),
        ("gpu[01-03],big1", ["gpu01", "gpu02", "gpu03", "big1"]),
        ("big1,gpu[01-02]", ["big1", "gpu01", "gpu02"]),
        ("b,a", ["b", "a"]),
        ("node10,node2", ["node10", "node2"]),
        ("rack[1-2]-n[0-1]", ["rack1-n0", "rack1-n1", "rack2-n0", "rack2-n1"]),
        ("n[0-6/2].local", ["n0.local", "n2.local", "n4.local", "n6.local"]),
        ("node[0-3]!node2", ["node0", "node1", "node3"]),
        ("node[0-9]&node[8-20]", ["node8", "node9"]),
        (" a , b ", ["a", "b"]),
        ("n1000000000", ["n1000000000"]),
    ],
)
def test_expands_in_the_order_written(text: str, names: list[str]) -> None:
    assert expand_names(text) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a name is missing"),
        ("a,,b", "a name is missing"),
        ("node[0-3", "bracket"),
        ("node0-3]", "bracket"),
        ("node[[0-3]]", "bracket"),
        ("node[]", "no range"),
        ("node[a-c]", "'a-c' is no number"),
        ("node[-1-3]", "'-1-3' is no number"),
        ("node[3-1]", "'3-1' is an empty range"),
        ("node[0-4/0]", "empty range"),
        ("node[00-010]", "padding length"),
        ("a b", "commas between"),
        ("@gpus", "groups"),
        ("node*", "wildcards"),
        ("node[0-3],node2", "'node2' comes again"),
        ("node[1,1]", "'node1' comes again"),
        ("node1!node1", "at least one"),
    ],
)
def test_refuses_what_is_no_set(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        expand_names(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "node[0-999999999]",
        "node[1-1000000000]",
        "node[0-999]x[0-999]x[0-999]",
        "node[0-99999],other[0-99999]",
        "node[0-999999999]!node[1-999999999]",
        "node[0-99999999999999999]",
    ],
)
def test_refuses_a_huge_set_without_building_it(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="at most 100,000 nodes"):
            expand_names(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20  # importing ClusterShell included


def test_refuses_numbers_that_python_would_not_convert() -> None:
    with pytest.raises(ValueError, match="18 digits"):
        expand_names(f"node[0-{'9' * 5000}]")


def test_the_largest_set_is_still_one() -> None:
    names = expand_names(f"node[1-{MAX_NODES}]")
    assert len(names) == MAX_NODES
    assert names[-1] == f"node{MAX_NODES}"


RANGES = st.builds(
    lambda first, more, step: f"{first}-{first + more}/{step}",
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(1, 7),
)


@given(st.lists(RANGES, min_size=1, max_size=2, unique=True))
def test_counts_what_expansion_gives(ranges: list[str]) -> None:
    """The arithmetic agrees with ClusterShell, which it is there to be asked before."""
    part = "".join(f"x[{piece}]" for piece in ranges)
    assert count_names(part) == len(expand_names(part))


@pytest.mark.parametrize(
    ("text", "count", "longer"),
    [
        ("node[0-3]", 8, "node[0-7]"),
        ("node[1-4]", 5, "node[1-5]"),
        ("gpu[01-16]", 20, "gpu[01-20]"),
        ("gpu[1-4].local", 12, "gpu[1-12].local"),
        ("gpu[08-09]", 100, "gpu[008-107]"),
        ("a,b", 3, None),
        ("a[0-1],b[0-1]", 8, None),
        ("a[0-1]b[0-1]", 8, None),
    ],
)
def test_a_set_of_one_range_goes_on_counting(text: str, count: int, longer: str | None) -> None:
    assert continue_set(text, count) == longer
    if longer is not None:
        assert len(expand_names(longer)) == count

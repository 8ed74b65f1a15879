"""Nothing is missed, and nothing is said against what is healthy: every case, run for real.

All of them in containers, whose warm processes begin a run at once. As processes of this machine,
where each rank imports torch for some seconds, one for each kind that `lab why` tells from stacks
and states of processes; the others are for `make test-all`.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import get_args

import pytest

from lab.diagnose.finding import WHY_KINDS
from lab.topology import Place
from lab.zoo.case import Case, Twin
from lab.zoo.registry import all_cases
from lab.zoo.runner import Outcome, Zoo
from lab.zoo.score import Score, false_alarms
from lab.zoo.workloads import WORKLOADS, Workload

NODES = 4
AHEAD = 1
"""Cases that are run beside the one that is waited for: many only wait to be looked at."""

Runs = dict[Twin, Future[Outcome]]


class Pen:
    """The cases that were chosen, on one place: the next ones run while one is waited for."""

    def __init__(self, zoo: Zoo, chosen: Sequence[Case]) -> None:
        self.zoo = zoo
        self._chosen = chosen
        self._begun: dict[str, Runs] = {}
        self._pool = ThreadPoolExecutor(len(get_args(Twin)) * (AHEAD + 1))

    def check(self, case: Case) -> None:
        """Expect the right verdict on one twin and none on the other."""
        first = self._chosen.index(case)
        for one in self._chosen[first : first + AHEAD + 1]:
            if one.name not in self._begun:
                self._begun[one.name] = {
                    twin: self._pool.submit(self.zoo.run_case, one, twin) for twin in get_args(Twin)
                }
        runs = self._begun[case.name]
        assert Score(case, runs["fault"].result(), runs["healthy"].result()).faults == []

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def cases(place: Place) -> list[Case]:
    return [case for case in all_cases() if place in case.where]


def local_cases() -> list[object]:
    seen: set[str] = set()
    params: list[object] = []
    for case in cases("local"):
        is_first = case.expect.kind in WHY_KINDS - seen
        seen.add(case.expect.kind)
        params.append(pytest.param(case, id=case.name, marks=[] if is_first else pytest.mark.slow))
    return params


def pen(
    place: Place, factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pen]:
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [
        value
        for item in items
        if item.module is request.module and place in item.fixturenames
        for value in item.callspec.params.values()
        if isinstance(value, Case)
    ]
    opened = Pen(Zoo(factory.mktemp(f"zoo-{place}"), place, NODES), chosen)
    with opened.zoo:
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def local(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pen]:
    yield from pen("local", tmp_path_factory, request)


@pytest.fixture(scope="module")
def docker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pen]:
    yield from pen("docker", tmp_path_factory, request)


@pytest.mark.parametrize("case", local_cases())
def test_a_fault_is_named_and_its_twin_is_not(local: Pen, case: Case) -> None:
    local.check(case)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_healthy_training_is_left_alone(local: Pen, workload: Workload) -> None:
    assert false_alarms(local.zoo.run_workload(workload)) == []


@pytest.mark.docker
@pytest.mark.parametrize("case", cases("docker"), ids=lambda case: case.name)
def test_in_containers(docker: Pen, case: Case) -> None:
    docker.check(case)

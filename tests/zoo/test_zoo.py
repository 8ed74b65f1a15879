"""Nothing is missed, and nothing is said against what is healthy: every case, run for real."""

from collections.abc import Iterator
from functools import partial

import pytest

from lab.zoo.case import Case, Place
from lab.zoo.registry import all_cases, find_cases
from lab.zoo.runner import Zoo
from lab.zoo.score import Score, false_alarms
from lab.zoo.workloads import WORKLOADS, Workload

NODES = 4


ONLY_ON_DOCKER = [case.name for case in all_cases() if "local" not in case.where]


def cases(place: Place) -> list[object]:
    return [pytest.param(case, id=case.name) for case in all_cases() if place in case.where]


def zoo_of(place: Place, factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    with Zoo(factory.mktemp(f"zoo-{place}"), place, NODES) as zoo:
        yield zoo


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    yield from zoo_of("local", tmp_path_factory)


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    """Its nodes have warm processes: a run begins at once."""
    yield from zoo_of("docker", tmp_path_factory)


def check(zoo: Zoo, case: Case) -> None:
    """Run both twins, and expect the right verdict on one and none on the other."""
    jobs = [partial(zoo.run_case, case, "fault"), partial(zoo.run_case, case, "healthy")]
    fault, healthy = zoo.each(jobs, lambda _step: None)
    assert Score(case, fault, healthy).faults == []


@pytest.mark.slow
@pytest.mark.parametrize("case", cases("local"))
def test_a_fault_is_named_and_its_twin_is_not(local: Zoo, case: Case) -> None:
    check(local, case)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_healthy_training_is_left_alone(local: Zoo, workload: Workload) -> None:
    assert false_alarms(local.run_workload(workload)) == []


@pytest.mark.docker
@pytest.mark.parametrize("name", ONLY_ON_DOCKER)
def test_what_needs_separate_machines(docker: Zoo, name: str) -> None:
    check(docker, find_cases([name])[0])


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("case", cases("docker"))
def test_in_containers(docker: Zoo, case: Case) -> None:
    check(docker, case)

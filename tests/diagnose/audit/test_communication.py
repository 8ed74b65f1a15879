"""Files, random states, devices, reported numbers and the pace of the ranks."""

from typing import Any

from lab.diagnose.audit.audit import Judge
from lab.diagnose.audit.chance import Noise, Splits
from lab.diagnose.audit.devices import DataParallel, SharedGpu
from lab.diagnose.audit.files import Files
from lab.diagnose.audit.pace import Pace
from lab.diagnose.audit.reports import Reports
from lab.diagnose.finding import Finding

SITE = {"step": 3, "file": "train.py", "line": 5, "function": "main"}
Records = list[tuple[int, dict[str, Any]]]


def found(judge: Judge, records: Records) -> list[Finding]:
    findings = [one for rank, record in records for one in judge.feed(rank, {**SITE, **record})]
    return findings + judge.close()


def file(
    name: str, folder: int = 1, disk: str = "nfs:/home", *, empty: bool = False
) -> dict[str, Any]:
    return {"check": "files", "key": [disk, folder, name], "path": name, "empty": empty}


def test_a_file_that_several_ranks_write_is_named_with_them() -> None:
    (finding,) = found(Files(3), [(0, file("a.pt")), (2, file("a.pt")), (1, file("b.pt"))])
    assert (finding.kind, finding.ranks, finding.line) == ("same-file", (0, 2), 5)
    assert "a.pt" in finding.summary


def test_a_rank_whose_file_was_emptied_by_the_others_has_written_it_too() -> None:
    written = [(rank, file("a.pt")) for rank in (0, 2)]
    (finding,) = found(Files(4), [*written, (1, file("a.pt", empty=True))])
    assert finding.ranks == (0, 1, 2)
    locks = [(rank, file("lock", empty=True)) for rank in range(4)]
    assert found(Files(4), [*locks, (3, file("lock"))]) == []


def test_files_of_the_same_name_on_disks_of_their_own_are_several() -> None:
    records = [(rank, file("a.pt", disk=f"machine-{rank}")) for rank in range(2)]
    assert found(Files(2), records) == []
    assert found(Files(2), [(0, file("a.pt", 1)), (1, file("a.pt", 2))]) == []


def noise(step: int, state: int) -> dict[str, Any]:
    return {"check": "noise", "step": step, "number": 0, "state": state, "weights": 1}


def test_random_numbers_that_are_the_same_on_some_ranks() -> None:
    records = [(r, noise(s, 10 * s + (r == 1))) for s in range(1, 5) for r in range(3)]
    (finding,) = found(Noise(3), records)
    assert (finding.kind, finding.ranks) == ("same-random-state", (0, 2))
    other = [(r, noise(s, 10 * s + r)) for s in range(1, 5) for r in range(3)]
    assert found(Noise(3), other) == []


def test_a_split_that_comes_out_differently() -> None:
    split = {"check": "splits", "number": 1, "lengths": [80, 20]}
    records: Records = [(rank, {**split, "digest": int(rank == 2)}) for rank in range(3)]
    (finding,) = found(Splits(3), records)
    assert (finding.kind, finding.ranks) == ("different-random-state", (2,))
    assert found(Splits(2), records[:2]) == []


def test_ranks_with_models_of_their_own_may_split_and_report_by_themselves() -> None:
    models: Records = [
        (rank, {"check": "batches", "step": s, "microbatch": 0, "weights": rank, "exchanged": True})
        for s in range(1, 4)
        for rank in range(2)
    ]
    split = {"check": "splits", "number": 1, "lengths": [80, 20]}
    splits: Records = [(rank, {**split, "digest": rank}) for rank in range(2)]
    assert found(Splits(2), splits + models) == []
    said: Records = [(0, report(s, v)) for s, v in enumerate(LOSSES[0], start=1)]
    assert found(Reports(2), losses() + said + models) == []


def test_ranks_on_one_gpu() -> None:
    gpus: Records = [
        (rank, {"check": "gpus", "index": 0, "uuid": uuid, "name": "H100"})
        for rank, uuid in enumerate(("GPU-1", "GPU-2", "GPU-1"))
    ]
    (finding,) = found(SharedGpu(3), gpus)
    assert (finding.kind, finding.ranks) == ("shared-gpu", (0, 2))
    assert found(SharedGpu(2), gpus[:2]) == []


def test_data_parallel_is_right_in_one_process() -> None:
    made = {"check": "data-parallel", "devices": 4}
    (finding,) = found(DataParallel(2), [(0, made), (1, made)])
    assert finding.ranks == (0, 1)
    assert found(DataParallel(1), [(0, made)]) == []


LOSSES = {0: [0.71, 0.53, 0.42, 0.33], 1: [0.95, 0.81, 0.6, 0.5]}


def losses() -> Records:
    return [
        (rank, {"check": "losses", "losses": [(s, v, 8) for s, v in enumerate(values, start=1)]})
        for rank, values in LOSSES.items()
    ]


def report(step: int, number: float, reductions: int = 0) -> dict[str, Any]:
    about = {"check": "reports", "step": step, "reductions": reductions}
    return {**about, "numbers": [(round(number, 4), 4)]}


def test_a_loss_that_is_the_ranks_own() -> None:
    said: Records = [(0, report(s, v)) for s, v in enumerate(LOSSES[0], start=1)]
    (finding,) = found(Reports(2), losses() + said)
    assert (finding.kind, finding.ranks, finding.line) == ("loss-not-averaged", (0,), 5)
    assert "0.71" in finding.evidence[0]


def test_a_loss_of_all_ranks_or_of_each_by_itself_is_right() -> None:
    means = [sum(pair) / 2 for pair in zip(*LOSSES.values(), strict=True)]
    said: Records = [(0, report(s, v)) for s, v in enumerate(means, start=1)]
    assert found(Reports(2), losses() + said) == []
    each: Records = [
        (rank, report(s, v)) for rank in LOSSES for s, v in enumerate(LOSSES[rank], start=1)
    ]
    assert found(Reports(2), losses() + each) == []


def test_a_mean_since_the_last_report_is_known_as_well() -> None:
    own = [(0.71 + 0.53) / 2, (0.42 + 0.33) / 2]
    said: Records = [(0, report(2 * n, value)) for n, value in enumerate(own, start=1)]
    assert found(Reports(2), losses() + said) == []  # twice may be chance
    more: Records = [
        (rank, {"check": "losses", "losses": [(5, 0.2 + rank, 8), (6, 0.1 + rank, 8)]})
        for rank in range(2)
    ]
    (finding,) = found(Reports(2), losses() + more + [*said, (0, report(6, 0.15))])
    assert finding.kind == "loss-not-averaged"


def reduced(number: int, value: float, rows: int) -> dict[str, Any]:
    return {"check": "reductions", "number": number, "values": [value], "rows": rows}


def test_a_mean_of_means_over_unequal_counts() -> None:
    for rows, kinds in (((24, 6), ["uneven-average"]), ((8, 8), [])):
        records: Records = []
        for n in range(1, 5):
            records += [(rank, reduced(n, n + rank, rows[rank])) for rank in range(2)]
            records.append((0, report(n, n + 0.5, reductions=n)))
        assert [finding.kind for finding in found(Reports(2), records)] == kinds


def test_a_mean_over_all_samples_is_right() -> None:
    records: Records = []
    for n in range(1, 5):
        records += [(0, reduced(n, 24.0 * n, 24)), (1, reduced(n, 6.0 * (n + 1), 6))]
        records.append((0, report(n, (24 * n + 6 * (n + 1)) / 30, reductions=n)))
    assert found(Reports(2), records) == []


def pace(window: int, own: float, waiting: float, **about: Any) -> dict[str, Any]:
    return {
        "check": "pace",
        "window": window,
        "own": [own] * 10,
        "waiting": [waiting] * 10,
        "phases": {"other": own * 0.8, "forward": own * 0.2},
        "places": [["other", "train.py", 7, "augment", 9], ["forward", "train.py", 8, None, 2]],
        "bytes": 8 << 20,
        "items": 512,
        **about,
    }


def test_a_straggler_is_named_with_where_its_time_goes() -> None:
    records = [
        (rank, pace(w, *((0.06, 0.001) if rank == 2 else (0.01, 0.05))))
        for w in range(3)
        for rank in range(4)
    ]
    (finding,) = found(Pace(4), records)
    assert (finding.kind, finding.ranks, finding.line) == ("straggler", (2,), 7)
    assert finding.function == "augment"
    assert finding.innocent[0].ranks == (0, 1, 3)


def test_a_slow_window_and_a_slow_rank_for_which_nobody_waits_are_no_straggler() -> None:
    now_and_then = [
        (rank, pace(w, *((0.06, 0.0) if rank == w % 2 else (0.01, 0.05))))
        for w in range(6)
        for rank in range(2)
    ]
    assert found(Pace(2), now_and_then) == []
    alone = [(rank, pace(w, 0.06 if rank else 0.01, 0.0)) for w in range(6) for rank in range(2)]
    assert found(Pace(2), alone) == []


def test_waiting_for_the_exchange_of_tiny_batches() -> None:
    tiny = [(rank, pace(w, 0.004, 0.006, items=2)) for w in range(3) for rank in range(2)]
    (finding,) = found(Pace(2), tiny)
    assert (finding.kind, finding.ranks, finding.line) == ("communication-bound", (0, 1), 5)
    for about in ({"items": 512}, {"items": 2, "bytes": 1000}):
        records = [(r, pace(w, 0.004, 0.006, **about)) for w in range(3) for r in range(2)]
        assert found(Pace(2), records) == []

"""Where collectives were called, from the frames that the flight recorder has of them."""

from typing import Any

from lab.rank.groups import _call

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed"


def frame(file: str, name: str, line: int = 1) -> dict[str, Any]:
    return {"filename": file, "name": name, "line": line}


def test_the_function_that_the_script_has_called_is_told_and_not_what_is_around_it() -> None:
    frames = [
        frame(f"{TORCH}/distributed_c10d.py", "all_gather"),
        frame(f"{TORCH}/c10d_logger.py", "wrapper"),
        frame(f"{TORCH}/checkpoint/state_dict_saver.py", "save"),
        frame(f"{TORCH}/checkpoint/logger.py", "wrapper"),
        frame(f"{TORCH}/checkpoint/utils.py", "inner_func"),
        frame("/home/me/train.py", "main", 11),
        frame("/home/me/train.py", "<module>", 20),
    ]
    site = {"file": "train.py", "line": 11, "function": "main"}
    assert _call(frames, "/home/me") == {
        "site": site,
        "callers": [{"file": "train.py", "line": 20, "function": "<module>"}],
        "via": "save",
    }


def test_what_no_line_of_the_script_has_called_has_no_place() -> None:
    frames = [frame(f"{TORCH}/distributed_c10d.py", "all_gather")]
    assert _call(frames, "/home/me") == {"site": None, "callers": [], "via": "all_gather"}


def test_a_rank_that_is_out_of_data_calls_through_join() -> None:
    frames = [
        frame(f"{TORCH}/distributed_c10d.py", "all_reduce"),
        frame(f"{TORCH}/algorithms/join.py", "_get_num_nonjoined_procs"),
        frame(f"{TORCH}/algorithms/join.py", "__exit__"),
        frame("/home/me/train.py", "main", 11),
    ]
    assert _call(frames, "/home/me")["via"] == "Join.__exit__"

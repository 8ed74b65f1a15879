"""The last check: all nodes in one process group, and an all-reduce over them."""

from lab.doctor.check import Check, listed
from lab.doctor.checks.software import not_deployed
from lab.doctor.examined import Examined


def roll_call(exam: Examined) -> list[Check]:
    """Who took part, and whether the sum was right; absent ones are named."""
    if not exam.is_called:
        return []
    told = exam.roll_call
    if not told and not_deployed(exam):
        found = "not called, for want of torch"
        return [Check("roll-call", "warn", found, exam.seen, "lab deploy, and lab doctor again")]
    if not told:
        found = f"not called, since {exam.master.name}, the master, is not ready for it"
        where = (exam.master.name,)
        return [Check("roll-call", "fail", found, where, "the lines above say why")]
    errors = {name: answer["error"] for name, answer in told.items() if "error" in answer}
    silent = tuple(name for name in exam.names if name not in told)
    present = next((answer["present"] for answer in told.values() if "present" in answer), None)
    absent = silent if present is None else tuple(n for n in exam.names if n not in present)
    checks = []
    if absent:
        found = f"{listed(absent)} did not come"
        if present:
            found += f"; {listed(tuple(present))} went on without"
        cure = "the lines above say what keeps them away"
        checks.append(Check("roll-call", "fail", found, absent, cure))
    for name, error in errors.items():
        cure = "the lines above say what is between them; else lab run, and lab why"
        checks.append(Check("roll-call", "fail", f"{name}: {error}", (name,), cure))
    wrong = tuple(name for name, answer in told.items() if answer.get("sum_is_right") is False)
    if wrong:
        found = f"the sum is wrong on {listed(wrong)}"
        cure = "broken hardware, or different builds of torch"
        checks.append(Check("roll-call", "fail", found, wrong, cure))
    if not checks:
        seconds = max(answer["seconds"] for answer in told.values())
        found = f"an all-reduce over {_nodes(len(told))} ({exam.backend}), {seconds:.1f} s"
        checks.append(Check("roll-call", "pass", found, exam.names))
    return checks


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count > 1)}"

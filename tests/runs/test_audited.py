"""What the last line of a run says of what the audit has found."""

from collections.abc import Sequence

import pytest

import lab.runs.audit as module
from lab.diagnose.finding import Finding, Severity
from lab.errors import EXIT_AUDIT
from lab.runs.audit import Auditing
from lab.runs.verdict import Verdict
from lab.topology import Topology


@pytest.mark.parametrize(
    ("severities", "words", "code"),
    [
        (["warning"], "all ended well, and the audit found 1 warning", 0),
        (["warning", "warning"], "all ended well, and the audit found 2 warnings", 0),
        (["error"], "all ended well, but the audit found 1 error", EXIT_AUDIT),
        (
            ["error", "warning", "error"],
            "all ended well, but the audit found 2 errors and 1 warning",
            EXIT_AUDIT,
        ),
    ],
)
def test_errors_and_warnings_are_counted(
    severities: Sequence[Severity], words: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Finding("same-file", severity, "a file of two ranks") for severity in severities]

    class Found:
        """Judges that have found these."""

        findings = found
        broken: tuple[str, ...] = ()

        def __init__(self, *_: object) -> None:
            pass

        def feed(self, *_: object) -> list[Finding]:
            return found

        def close(self) -> list[Finding]:
            return []

    monkeypatch.setattr(module, "Audit", Found)
    auditing = Auditing(Topology.model_validate({"name": "two", "nodes": 2}), lambda _: None)
    auditing.event({"type": "audit", "rank": 0, "record": {"check": "files"}})
    verdict = auditing.close(Verdict("ok", 0, "all ended well"))
    assert (verdict.summary, verdict.exit_code) == (words, code)
    failed = auditing.close(Verdict("exception", 1, "rank 0 raised"))
    assert failed.summary == "rank 0 raised"

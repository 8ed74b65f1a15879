"""What one rank does, in words, and where a finding points to."""

from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import Activity, Doing, activity_of
from lab.diagnose.why.evidence import Frame, Rank
from lab.diagnose.why.wording import site_in_words

VERBS = {
    Doing.RENDEZVOUS: "joins the process group",
    Doing.COMMUNICATION: "is",
    Doing.BACKWARD: "is",
    Doing.HANDLE: "waits for an operation that it has begun",
    Doing.STORE: "waits",
    Doing.DATA: "waits for its data loader",
    Doing.IMPORTING: "imports what it needs",
    Doing.SAVING: "saves a checkpoint",
    Doing.LOADING: "loads a checkpoint",
    Doing.ENDING: "has come to the end of its script, and waits for its other threads",
    Doing.ELSE: "is",
}


def does(rank: Rank, activity: Activity, idle: str = "is") -> str:
    """`saves a checkpoint in save() at train.py:9 (main): `torch.save(state, path)``.

    `idle`: the verb for who is in a line of its own, and computes nothing.
    """
    if rank.ended is not None:
        return f"has ended (exit code {rank.ended['code']})"
    place = site_in_words(activity.site, activity.function)
    code = f": `{activity.site.code}`" if activity.site and activity.site.code else ""
    if activity.doing is Doing.UNKNOWN:
        return f"shows no stack ({rank.error or 'no answer'})"
    if activity.doing is Doing.ENDING:
        return f"{VERBS[activity.doing]} ({', '.join(rank.other_threads[:4])})"
    if activity.doing is Doing.STORE:
        keys = ", ".join(repr(key) for key in activity.arguments["keys"])
        wanted = f"for the key{'s' * (len(activity.arguments['keys']) > 1)} {keys}"
        return f"waits in {activity.function}() {wanted}{site_in_words(activity.site)}{code}"
    if activity.doing is Doing.ELSE:
        use = ", busy" if rank.is_busy else ", using no processor time" if rank.is_idle else ""
        verb = idle if place and rank.is_idle and not rank.is_busy else VERBS[activity.doing]
        return f"{verb}{place or ' in no line of the script'}{code}{use}"
    return f"{VERBS[activity.doing]}{place}{code}"


def seen(rank: Rank) -> str:
    """The same as a sentence of the evidence, with the state of its process."""
    if rank.ended is not None:
        return f"rank {rank.number} {does(rank, activity_of(rank))}"
    share = "" if rank.cpu_share is None else f", {rank.cpu_share:.0%} of a core"
    state = "" if rank.process_state is None else f" (state {rank.process_state}{share})"
    return f"rank {rank.number} {does(rank, activity_of(rank))}{state}"


def at(finding: Finding, site: Frame | None) -> Finding:
    """The finding with its line, where it is known."""
    if site is None:
        return finding
    return replace(finding, file=site.file, line=site.line, function=site.function)

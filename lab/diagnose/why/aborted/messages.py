"""The verdict on an aborted rank that received a message: that is no collective."""

from collections.abc import Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.aborted.abort import Abort
from lab.diagnose.why.evidence import Evidence, Rank
from lab.diagnose.why.telling import at, does
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import site_in_words, who
from lab.diagnose.words import ranks_in_words


def senders_to(evidence: Evidence, rank: Rank) -> tuple[int, ...]:
    """Who has sent messages to it that are no collectives."""
    return tuple(
        number
        for number, one in sorted(evidence.ranks.items())
        if any(peer == rank.number and sent for (_, peer, _), (sent, _) in one.messages.items())
    )


def judge_message(
    evidence: Evidence, abort: Abort, senders: tuple[int, ...], waits: Mapping[int, Wait]
) -> Finding:
    """More was sent to it than its receive has room for: nothing tells which size is right."""
    number, function = abort.rank.number, abort.activity.function
    known = len(senders) == 1
    ranks = tuple(sorted({*senders, number})) if known else (number,)
    where = f"whose {function}{site_in_words(abort.activity.site)} had room for {abort.room}"
    if "recv" not in (function or "") or function == "batch_isend_irecv":
        doing = does(replace(abort.rank, ended=None), abort.activity)
        where = f"where a receive had room for {abort.room}: that rank {doing}"
    finding = Finding(
        "mismatched-collective",
        "error",
        f"{who(senders, evidence) if known else 'a rank'} sent {abort.came} bytes to "
        f"{who((number,), evidence)}, {where}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=() if known or not senders else (f"{ranks_in_words(senders)} have sent to it",),
        cure="receive into a tensor of the shape and dtype that is sent; where these change, send "
        "them first",
    )
    return at(finding, abort.activity.site)

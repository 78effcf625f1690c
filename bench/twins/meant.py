"""Differences that are meant and that a pattern of `known` cannot tell: functions of what both sides say."""
import re

# What rules of spread and of neighbours say, which run last in ours.
LAST = re.compile(r"topology spread|pod (anti-)?affinity|anti-affinity rules")
LACKS = re.compile(r"Insufficient \S+|node\(s\) preemption failed due to insufficient resources")
IN_VAIN = re.compile(r"(\d+ )?No preemption victims found for incoming pod|not eligible due to preemptionPolicy=Never")


def counts(message):
    """Of a condition's message: how many nodes each reason has."""
    found = {}
    for part in filter(None, (message or "").split(", ")):
        number, reason = re.fullmatch(r"(\d*) ?(.*)", part).groups()
        found[reason] = found.get(reason, 0) + int(number or 0)
    return found


def counted_elsewhere(ours, theirs):
    """Nodes that theirs counts under spread or neighbours, ours under what other rules hold against them."""
    mine, others = counts(ours), counts(theirs)
    fewer = [reason for reason in others if mine.get(reason, 0) < others[reason]]
    more = [reason for reason in mine if others.get(reason, 0) < mine[reason]]
    return bool(fewer) and all(map(LAST.search, fewer)) and not any(map(LAST.search, more))


def in_vain(ours, theirs):
    """Whether, and on how many nodes, it was said that there is nobody to evict."""
    return all(not side or isinstance(side, str) and IN_VAIN.fullmatch(side) for side in (ours, theirs))


def by_a_member(ours, theirs):
    """Of a gang that is rejected, one says why, the other that a member is refused so; or both do, of two."""
    def rejected(text, reason):
        return "gets rejected due to member" in (text or "") and ((reason or "") in text or "gets rejected due to member" in reason)

    return rejected(ours, theirs) or rejected(theirs, ours)


def owners_spared(ours, theirs):
    """Nodes where theirs evicts owners of a reservation in thought, and says what is lacking even then; ours has nobody to evict."""
    mine, others = counts(ours), counts(theirs)
    more = [reason for reason in others if mine.get(reason, 0) < others[reason]]
    fewer = [reason for reason in mine if others.get(reason, 0) < mine[reason]]
    return bool(more) and all(map(LACKS.fullmatch, more)) and all(map(IN_VAIN.fullmatch, fewer))


CHECKS = {"by-a-member": by_a_member, "counted-elsewhere": counted_elsewhere, "in-vain": in_vain, "owners-spared": owners_spared}

"""Checks of expected differences that a pattern of `known` cannot express: functions of both sides' texts."""
import re

# Reasons of topology spread and pod affinity, which run last in ours.
LAST = re.compile(r"topology spread|pod (anti-)?affinity|anti-affinity rules")
LACKS = re.compile(r"Insufficient \S+|node\(s\) preemption failed due to insufficient resources")
NO_VICTIMS = re.compile(r"(\d+ )?No preemption victims found for incoming pod|not eligible due to preemptionPolicy=Never")


def counts(message):
    """Returns the number of nodes of each reason in a condition's message."""
    found = {}
    for part in filter(None, (message or "").split(", ")):
        number, reason = re.fullmatch(r"(\d*) ?(.*)", part).groups()
        found[reason] = found.get(reason, 0) + int(number or 0)
    return found


def counted_elsewhere(ours, theirs):
    """True if theirs counts nodes under spread or affinity that ours counts under other reasons."""
    mine, others = counts(ours), counts(theirs)
    fewer = [reason for reason in others if mine.get(reason, 0) < others[reason]]
    more = [reason for reason in mine if others.get(reason, 0) < mine[reason]]
    return bool(fewer) and all(map(LAST.search, fewer)) and not any(map(LAST.search, more))


def no_victims(ours, theirs):
    """True if each side reports no victims, or nothing."""
    return all(not side or isinstance(side, str) and NO_VICTIMS.fullmatch(side) for side in (ours, theirs))


def by_a_member(ours, theirs):
    """True if one side has the reason of a rejected gang and the other names the member, or both name one."""
    def rejected(text, reason):
        return "gets rejected due to member" in (text or "") and ((reason or "") in text or "gets rejected due to member" in reason)

    return rejected(ours, theirs) or rejected(theirs, ours)


def owners_spared(ours, theirs):
    """True if theirs simulates evicting owners of a reservation and reports what is still missing, and ours has no victims."""
    mine, others = counts(ours), counts(theirs)
    more = [reason for reason in others if mine.get(reason, 0) < others[reason]]
    fewer = [reason for reason in mine if others.get(reason, 0) < mine[reason]]
    return bool(more) and all(map(LACKS.fullmatch, more)) and all(map(NO_VICTIMS.fullmatch, fewer))


CHECKS = {"by-a-member": by_a_member, "counted-elsewhere": counted_elsewhere, "no-victims": no_victims, "owners-spared": owners_spared}

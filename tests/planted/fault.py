"""What a planted fault is; README.md beside this."""

from typing import NamedTuple

SCHEDULER = ("scheduler", "programs", "sim")  # the test programs that may notice, the quick ones first
CLIENT = ("client",)
DAEMON = ("daemon", "client")
RING = ("proto", "daemon", "client")


class Fault(NamedTuple):
    name: str
    file: str
    before: str
    after: str
    harm: str
    programs: tuple = SCHEDULER


class Misfit(Exception):
    """The list has not followed the code."""


def edited(text, faults):
    """The file with all its faults; Misfit names the first one that does not fit it."""
    places = []
    for fault in faults:
        if text.count(fault.before) != 1:
            raise Misfit(f"{fault.name}: {text.count(fault.before)} places in {fault.file} read\n{fault.before}\n"
                         "the list must follow the code")
        start = text.index(fault.before)
        places.append((start, start + len(fault.before), fault))
    places.sort()
    for (_, end, one), (start, _, other) in zip(places, places[1:]):
        if start < end:
            raise Misfit(f"{one.name} and {other.name} change the same place of {one.file}")
    for start, end, fault in reversed(places):
        text = text[:start] + fault.after.replace("@", f'::cgx::planted("{fault.name}")') + text[end:]
    return '#include "planted.h"\n' + text

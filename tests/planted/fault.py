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

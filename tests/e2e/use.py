"""What daemons hold: descriptors, sockets, memory; and waiting until that has settled."""

import os
import time


class Use:
    """What a daemon holds."""

    def __init__(self, daemon):
        pid = daemon.process.pid
        self.descriptors = self.sockets = 0
        for name in os.listdir(f"/proc/{pid}/fd"):
            self.descriptors += 1
            try:
                self.sockets += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
            except FileNotFoundError:
                pass
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            values = dict(line.split(":", 1) for line in file)
        self.memory_bytes = int(values["RssAnon"].split()[0]) << 10

    def __str__(self):
        return f"{self.descriptors} descriptors ({self.sockets} sockets), {self.memory_bytes / 2**20:.1f} MiB"


class Holding(Use):
    """Its links and arenas as well."""

    def __init__(self, daemon):
        super().__init__(daemon)
        self.index = daemon.machine.index
        self.links = daemon.control_tool("status").get("links", 0)

    def __str__(self):
        return f"{super().__str__()}, {self.links} links"


def settle(daemons, limit_s):
    """Until links have ended and for a second nothing has changed any more, twice the limit at most."""
    began = last_change = time.monotonic()
    last = None
    while time.monotonic() < min(max(began + limit_s, last_change + 1), began + 2 * limit_s + 2):
        uses = [Use(daemon).descriptors for daemon in daemons]
        if uses != last:
            last, last_change = uses, time.monotonic()
        time.sleep(0.1)

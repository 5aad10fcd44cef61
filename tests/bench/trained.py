"""Two daemons and a trainer on each, which really trains (trained_rank.py)."""

import json
import os
import subprocess
import sys

import daemons

HERE = os.path.dirname(os.path.abspath(__file__))


class Job:
    """Two daemons and a trainer on each."""

    def __init__(self, machines, folder, model, policy, seed=1):
        os.makedirs(os.path.join(folder, "meeting"))
        self.daemons = [daemons.Daemon(machine, folder, {"policy": policy}) for machine in machines]
        self.ranks = [machine.start([sys.executable, os.path.join(HERE, "trained_rank.py"), model, str(rank), "2",
                                     os.path.join(folder, "meeting"), str(seed)], text=True, stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE,
                                    env=daemons.python_environment(CGX_SOCKET=self.daemons[rank].socket))
                      for rank, machine in enumerate(machines)]
        for rank in self.ranks:
            if rank.stdout.readline() != "ready\n":
                raise RuntimeError(f"a trainer ended with {rank.wait()}")

    def say(self, command):
        """Every rank's answer."""
        for rank in self.ranks:
            rank.stdin.write(command + "\n")
            rank.stdin.flush()
        return [json.loads(rank.stdout.readline()) for rank in self.ranks]

    def apply(self, setting):
        self.daemons[0].control_tool("policy", "apply", "--lossy", "--wait", "0", "--set", setting)

    def tensors(self):
        return self.daemons[0].control_tool("tensors")["tensors"]

    def note(self):
        notes = self.daemons[0].control_tool("jobs")["communicators"][0].get("plan_notes", [])
        return notes[-1]["plan"] if notes else ""

    def bytes_sent(self):
        return sum(daemon.counters()["encoded_bytes_sent"] for daemon in self.daemons)

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
            rank.wait(20)
            rank.stdout.close()
        for daemon in self.daemons:
            daemon.process.terminate()
            daemon.process.wait(20)

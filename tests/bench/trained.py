"""Two daemons and a trainer on each, which really trains (trained_rank.py)."""

from trainers import Trainers


class Job(Trainers):
    def __init__(self, machines, folder, model, policy, seed=1):
        super().__init__(machines, folder, {"policy": policy}, "trained_rank.py", model, str(seed))

    def apply(self, setting):
        self.daemons[0].control_tool("policy", "apply", "--lossy", "--wait", "0", "--set", setting)

    def tensors(self):
        return self.daemons[0].control_tool("tensors")["tensors"]

    def note(self):
        notes = self.job().get("plan_notes", [])
        return notes[-1]["plan"] if notes else ""

    def bytes_sent(self):
        return sum(daemon.counters()["encoded_bytes_sent"] for daemon in self.daemons)

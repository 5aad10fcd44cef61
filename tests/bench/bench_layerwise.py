"""layerwise: how many bytes do bits that differ by layer save, at no larger error?

layerwise/MODEL: bytes that machines send under 4 bits for all layers / under `ceilings: layerwise`, while two ranks train a model of
`convergence`. The trainers themselves measure on their gradients what both lose (torch, not our kernels); a larger error is a ratio of 0.
"""

import json
import os
import subprocess
import sys
import tempfile

import daemons
from machines import Machines

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = ("transformer", "conv")
POLICY = {"codec": "maxmin:4,stochastic", "ceilings": "layerwise", "stats_steps": 10, "replica_check_steps": 0}
WITHIN = 1.02  # a bound on a mean of noisy steps
SETTLED_AFTER = 60


def run(options, report):
    if options.peers_only:
        return
    for model in MODELS:
        if options.wants(model):
            measure(model, options, report)


def measure(model, options, report):
    rounds, steps = (1, 10) if options.quick else (3, 30)
    ours, uniform, errors, notes = 0, 0, [0.0, 0.0], []
    with Machines(2, isolate=False) as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        job = Job(machines, folder, model)
        try:
            for _ in range(rounds):
                job.apply("ceilings=layerwise")
                job.say(f"steps {SETTLED_AFTER}")
                notes.append(job.note())
                bits = job.bits()
                sent = job.bytes_sent()
                for rank in job.say(f"errors {steps} {json.dumps(bits)}"):
                    errors = [have + new for have, new in zip(errors, rank)]
                ours += job.bytes_sent() - sent
                job.apply("ceilings=policy")
                job.say("steps 4")
                sent = job.bytes_sent()
                job.say(f"steps {steps}")
                uniform += job.bytes_sent() - sent
        finally:
            job.close()
    error = errors[1] / errors[0]
    ratio = uniform / ours if error <= WITHIN else 0.0
    counted = ", ".join(f"{list(bits.values()).count(each)} x {each} bits" for each in sorted(set(bits.values())))
    report.add("layerwise", model, ours / rounds / steps, "uniform", uniform / rounds / steps, ratio, "B/step",
               f"{error:.2f} of the error; {counted}; {notes[-1]}")


class Job:
    """Two daemons and a trainer on each."""

    def __init__(self, machines, folder, model):
        os.makedirs(os.path.join(folder, "meeting"))
        self.daemons = [daemons.Daemon(machine, folder, {"policy": POLICY}) for machine in machines]
        self.ranks = [machine.start([sys.executable, os.path.join(HERE, "layerwise_rank.py"), model, str(rank), "2",
                                     os.path.join(folder, "meeting")], text=True, stdin=subprocess.PIPE,
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

    def bits(self):
        """Of tensors whose codec neither a rule nor their size decides."""
        found = {}
        for tensor in self.daemons[0].control_tool("tensors")["tensors"]:
            if tensor["reason"] in ("default", "ceilings: layerwise"):
                codec = tensor["codec"]
                found[tensor["name"]] = int(codec.split(":")[1].split(",")[0]) if ":" in codec else 32
        return found

    def note(self):
        notes = self.daemons[0].control_tool("jobs")["communicators"][0].get("plan_notes", [])
        return notes[-1]["plan"] if notes else "nothing to gain"

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

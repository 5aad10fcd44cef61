"""overhead/tenant: does one job's long policy, shown and changed each second, slow another job's steps?

overhead/round: how long was the data thread's longest round meanwhile, in processor time, and what took it?
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import ours
from daemons import binary, python_environment
from machines import Machines
from rounds import percentile

HERE = os.path.dirname(os.path.abspath(__file__))
BYTES = 1 << 20
TENSORS, RULES = 2000, 400
CASES = ("tenant/status", "tenant/apply")
ROUND, ROUND_US = "round", 2000.0


def run(options, report):
    if options.peers_only or not any(options.wants(case) for case in (*CASES, ROUND)):
        return
    rounds, repetitions = (2, 300) if options.quick else (9, 4000)
    with Machines(1) as machines, tempfile.TemporaryDirectory(prefix="cgx-bench-") as folder:
        machines.build = options.build
        victim = ours.Cgxd(machines, 2, 2 * BYTES, ours.FP32)
        tenant = None
        try:
            tenant = Tenant(machines[0], victim.daemons[0], folder)
            times = {"alone": [], "tenant/status": [], "tenant/apply": []}
            for _ in range(rounds):
                times["alone"] += victim.measure(BYTES, repetitions)["us"]
                for case, asked in (("tenant/status", tenant.show), ("tenant/apply", tenant.apply)):
                    with each_second(asked):
                        times[case] += victim.measure(BYTES, repetitions)["us"]
            longest = tenant.longest_round()
        finally:
            if tenant is not None:
                tenant.close()
            victim.close()
    p99 = {name: percentile(sorted(values), 0.99) for name, values in times.items()}
    for case in CASES:
        if options.wants(case):
            report.add("overhead", case, p99[case], "alone", p99["alone"], p99["alone"] / p99[case], "us p99",
                       f"longest {max(times[case]) / 1e3:.1f} ms, alone {max(times['alone']) / 1e3:.1f} ms")
    if options.wants(ROUND):
        us = int(longest["cpu_ns"]) / 1e3
        report.add("overhead", ROUND, us, "2 ms", ROUND_US, ROUND_US / us, "us of CPU",
                   f"{int(longest['wall_ns']) / 1e6:.1f} ms on the clock, by {longest['what']}")


@contextlib.contextmanager
def each_second(asked):
    """Asks at once and then each second, beside what is inside."""
    stopped, failed = threading.Event(), []

    def ask():
        while not stopped.is_set():
            began = time.monotonic()
            try:
                asked()
            except Exception as error:  # pylint: disable=broad-except  the measuring thread raises it
                failed.append(error)
                return
            stopped.wait(max(0.0, 1.0 - (time.monotonic() - began)))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
    if failed:
        raise failed[0]


class Tenant:
    def __init__(self, machine, daemon, folder):
        self.daemon = daemon
        self.process = machine.start([sys.executable, os.path.join(HERE, "tenant.py"), str(TENSORS)],
                                     env=python_environment(CGX_SOCKET=daemon.socket), stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the tenant ended with {self.process.wait()}")
        self.files = []
        for window in (3, 4):
            policy = {"window": window, "rules": [
                {"match": rf"^model\.layers\.(\d+)\.block{i % 9}\.[a-z]+\.{i}7?\.weight$", "codec": "fp32"}
                for i in range(RULES)]}
            self.files.append(os.path.join(folder, f"policy{window}.yaml"))
            with open(self.files[-1], "w", encoding="utf-8") as file:
                json.dump(policy, file)  # JSON is YAML
        self.apply()

    def show(self):
        for words in (("status",), ("tensors", "-j", "tenant"), ("counters",)):
            self.daemon.control_tool(*words)

    def longest_round(self):
        """Of the data thread, in the last minute."""
        status = self.daemon.control_tool("status")
        none = {"cpu_ns": 200_000, "wall_ns": 200_000, "what": "anything: none was as long as 0.2 ms"}
        return status["data_thread"].get("longest_lately") or none

    def apply(self):
        self.files.reverse()
        self.daemon.control_tool("policy", "apply", "-j", "tenant", self.files[0], "--wait", "0")
        for _ in range(3):  # so that it takes force
            self.process.stdin.write("step\n")
            self.process.stdin.flush()
            if self.process.stdout.readline().strip() != "stepped":
                raise RuntimeError("the tenant ended")

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)

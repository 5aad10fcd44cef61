"""Every figure on the metrics page moves with what happens: nothing is shown that nobody writes.

Each scene names the figures it moves. In the end every figure on the page was moved by one, or stands in QUIET with the
reason why nothing that honest machines do here can move it.
"""

import re
import unittest

import numpy as np

from cluster_case import ClusterCase
from daemons import merged
from ranks import Tensor

PORT = 9464
HERE, OTHER, DOOMED = range(3)  # machines; the page is HERE's
TENSORS = (Tensor("weight", (300, 411)), Tensor("half", (64, 64)), Tensor("late", (64, 64)))
POLICY = {"codec": "maxmin:4,feedback", "stats_steps": 1, "replica_check_steps": 1, "min_elements": 64,
          "rules": [{"match": "half", "codec": "fp16"}]}
QUIET = {
    "build_info": "always 1",
    "open_files_max": "a limit",
    "data_thread_longest_round_seconds": "needs a round of 0.2 ms or more (tests/daemon/duty_cycle_test.cc)",
    "log_dropped_total": "needs a reader of the log that stops (tests/daemon/log_test.cc)",
    "replica_divergences_total": "honest machines get the same bits (tests/sim)",
    "frames_corrupt_total": "needs a link that changes bytes (tests/sim/seeds_test.cc)",
    "frames_unexpected_total": "needs a peer that breaks the rules (tests/sim/unruly_peers_test.cc)",
    "frames_stale_total": "a race between a failure and its news (tests/sim)",
    "ring_violations_total": "needs a client that breaks its ring (tests/daemon/data_agent_test.cc)",
    "sessions_refused_total": "needs a stranger (strangers_test.py)",
    "peers_refused_total": "needs another key (strangers_test.py)",
    "connections_refused_total": "needs a stranger on the data path (tcp_test.py)",
    "connections_lost_total": "needs a network that fails (tcp_test.py)",
    "control_junk_total": "needs garbage on a port (strangers_test.py)",
}


class Figures(ClusterCase):
    MACHINES = 3
    CONFIG = {"policy": POLICY, "timeouts": {"late_warning_ms": 1000}}

    @classmethod
    def config_of(cls, machine):
        small = {"limits": {"plan_bytes": "64 MiB"}} if machine == OTHER else {}
        return merged(merged(cls.CONFIG, small),
                      {"metrics": {"address": cls.machines[machine].address, "port": PORT}})

    def page(self):
        """{figure: {labels: value}}, without zeros; self.names gets all names."""
        machine = self.machines[HERE]
        fetch = ["/usr/bin/python3", "-c", "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"]
        text = machine.run([*fetch, f"http://{machine.address}:{PORT}/metrics"], capture_output=True, text=True,
                           check=True).stdout
        figures = {}
        self.names |= set(re.findall(r"^# TYPE cgxd_(\w+)", text, re.MULTILINE))
        for name, labels, value in re.findall(r"^cgxd_(\w+)(\{.*\})? (\S+)$", text, re.MULTILINE):
            name = re.sub(r"_(bucket|sum|count)$", "", name)  # of a histogram: any of its figures
            if float(value) != 0:
                figures.setdefault(name, {})[labels] = float(value)
        return figures

    def scene(self, what, moved, happens):
        """A figure that nobody writes is 0 or missing, before and after."""
        before = self.page()
        happens()
        after = self.page()
        still = [name for name in moved if after.get(name) == before.get(name)]
        self.assertEqual(still, [], f"{what} did not move them")
        self.moved |= set(moved)

    def wait_for(self, *figures):
        self.wait_until(lambda: set(figures) <= set(self.page()), " and ".join(figures))

    def step(self, job, comm, step):
        job.submit(comm, step)
        job.must("wait", comm, step)

    def fill(self, job, comm, rank, index, value):
        path = job.path("in", rank, index)
        np.full(TENSORS[index].shape, value, np.float32).tofile(path)
        job.ranks[rank].must("fill", comm, index, path)

    def test_each_figure_is_moved_by_something(self):
        self.moved, self.names = set(), set()
        job = None

        def first_step():
            nonlocal job
            job = self.job([HERE, OTHER])
            self.comm = job.join(tensors=TENSORS)
            self.step(job, self.comm, 1)
            self.wait_for("peer_rtt_seconds")

        self.scene("a first step", [
            "uptime_seconds", "sessions", "arena_bytes", "arenas", "links", "open_files", "sessions_opened_total",
            "operations_started_total", "operations_completed_total", "steps_completed_total", "gradient_bytes_total",
            "encoded_bytes_sent_total", "encoded_bytes_received_total", "frames_sent_total", "frames_received_total",
            "epochs_switched_total", "communicator_step", "communicator_watermark", "communicator_epoch",
            "communicator_operations_total", "communicator_gradient_bytes_total", "communicator_wire_sent_bytes_total",
            "communicator_exchange_seconds_total", "communicator_reserved_bytes", "communicator_sent_share", "peer_up",
            "peer_heartbeat_age_seconds", "peer_rtt_seconds", "peer_sent_bytes_total", "peer_received_bytes_total",
            "peer_sent_frames_total", "peer_received_frames_total", "replica_checks_total", "data_thread_busy_seconds_total",
            "data_thread_cpu_seconds_total", "communicator_wait_seconds", "communicator_encode_seconds",
            "communicator_reduce_seconds", "communicator_wire_seconds", "communicator_decode_seconds",
            "communicator_exchange_seconds"], first_step)

        def odd_values():
            job.fill(self.comm, 2)
            self.fill(job, self.comm, 0, 0, np.nan)
            self.fill(job, self.comm, 0, 1, 1e6)  # more than fp16 holds
            job.must("submit", self.comm, 2, 0, 1, 2, ranks=[1])
            job.must("end", self.comm, 2, ranks=[1])
            self.wait_for("held_bytes_total")
            job.must("submit", self.comm, 2, 0, 1, ranks=[0])  # without the last, which keeps its residual
            job.must("end", self.comm, 2, ranks=[0])
            job.must("wait", self.comm, 2)

        self.scene("odd values, one early machine and an absent tensor", [
            "nonfinite_buckets_total", "saturated_values_total", "held_bytes_total", "copied_bytes_total"], odd_values)

        def late_rank():
            job.submit(self.comm, 3, [0])
            self.wait_for("communicator_late_seconds", "late_rank_warnings_total")

        self.scene("a late rank", ["communicator_late_seconds", "late_rank_warnings_total"], late_rank)
        job.submit(self.comm, 3, [1])
        job.must("wait", self.comm, 3)

        def change_policy():
            target = ["--job", job.name, "--communicator", "grads"]
            refused = self.daemons[HERE].control_tool("policy", "apply", *target, "--set", "window=64",
                                                      "--set", "group_bytes=64 MiB", check=False)
            self.assertEqual(refused.returncode, 1, refused.stdout)
            self.daemons[HERE].control_tool("policy", "apply", *target, "--set", "window=3")
            for step in range(4, 8):
                self.step(job, self.comm, step)

        self.scene("a refused policy and another one", [
            "policy_changes_total", "plans_refused_total", "communicator_policy_version"], change_policy)

        def abandon():
            started = self.page()["operations_started_total"]
            job.submit(self.comm, 8, [0])
            self.wait_until(lambda: self.page()["operations_started_total"] != started, "the start of an operation")
            job.ranks[1].must("submit", self.comm, 8, 0)
            job.ranks[1].ask("submit", self.comm, 8, 0)
            self.wait_for("steps_failed_total")

        self.scene("a step abandoned on the other machine", ["steps_failed_total", "operations_failed_total"], abandon)

        def lose_rank():
            other = self.job([HERE, DOOMED])
            comm = other.join(tensors=TENSORS)
            self.step(other, comm, 1)
            job.ranks[1].kill()
            self.daemons[DOOMED].process.kill()
            self.daemons.remove(self.daemons[DOOMED])
            self.wait_until(lambda: len(self.page().get("communicator_failed", ())) == 2, "the failure of both")
            job.ranks[0].kill()
            self.wait_for("sessions_lost_total")

        self.scene("a dead daemon and dead ranks", [
            "communicator_failed", "peers_lost_total", "sessions_lost_total", "residual_bytes"], lose_rank)
        self.assertEqual(sorted(self.names - self.moved - set(QUIET)), [], "no scene moves them")
        self.assertEqual(sorted(set(QUIET) - self.names), [], "they are not shown any more")


if __name__ == "__main__":
    unittest.main()

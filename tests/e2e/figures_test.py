"""Every figure on the metrics page moves with what happens: nothing is shown that nobody writes.

Each scene names the figures it moves. In the end every figure on the page was moved by one, or stands in QUIET with the
reason why nothing that honest machines do here can move it.
"""

import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
import time
import unittest

import numpy as np

from cluster_case import ClusterCase, figure
from daemons import binary, merged
from machines import isolation_possible
from ranks import Tensor
from troubles import distant

PORT = 9464
HERE, OTHER, DOOMED = range(3)  # machines; the page is HERE's
TENSORS = (Tensor("weight", (300, 411)), Tensor("half", (64, 64)), Tensor("late", (64, 64)))
POLICY = {"codec": "maxmin:4,feedback", "stats_steps": 1, "replica_check_steps": 1, "min_elements": 64,
          "rules": [{"match": "half", "codec": "fp16"}]}
TUNED = {"encode", "decode", "reduce", "encode with feedback", "local reduce", "decode and add"}
TUNING_S = 0.010  # once in twenty starts: others may have the core
QUIET = {
    "build_info": "always 1",
    "open_files_max": "a limit",
    "data_thread_longest_round_seconds": "needs a round of 0.2 ms or more (tests/daemon/data/duty_cycle_test.cc)",
    "log_dropped_total": "needs a reader of the log that stops (tests/daemon/base/log_test.cc)",
    "communicator_trials_cost_seconds": "needs a plan that loses its trial (tests/scheduler/planners/trial_account_test.cc)",
    "replica_divergences_total": "honest machines get the same bits (tests/sim)",
    "frames_corrupt_total": "needs a link that changes bytes (tests/sim/figures_test.cc)",
    "frames_unexpected_total": "needs a peer that breaks the rules (tests/sim/figures_test.cc)",
    "frames_stale_total": "a race between a failure and its news (tests/sim/figures_test.cc)",
    "ring_violations_total": "needs a client that breaks its ring (tests/daemon/data/data_agent_test.cc)",
    "sessions_refused_total": "needs a stranger (strangers_test.py)",
    "peers_refused_total": "needs another key (strangers_test.py)",
    "connections_refused_total": "needs a stranger on the data path (tcp_test.py)",
    "connections_lost_total": "needs a network that fails (tcp_test.py)",
    "control_junk_total": "needs garbage on a port (strangers_test.py)",
    "device_arenas_vmm_total": "needs a GPU (tests/gpu/worker_test.py)",
    "device_arenas_ipc_total": "needs a GPU (tests/gpu/worker_test.py)",
    "device_ranks_staged_total": "needs a GPU (tests/gpu/worker_test.py)",
    "device_staged_bytes_total": "needs a GPU (tests/gpu/several_test.py)",
    "site_frames_total": "needs two GPUs (tests/gpu/several_test.py)",
    "site_bytes_total": "needs two GPUs (tests/gpu/several_test.py)",
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
            self.wait_for("peer_rtt_seconds", "replica_checks_total")

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

        searching = self.job([HERE, OTHER])

        def search():
            comm = searching.join(tensors=TENSORS)
            self.daemons[HERE].control_tool("policy", "apply", "--job", searching.name, "--set", "mode=auto", "--lossy")
            for step in range(1, 11):
                self.step(searching, comm, step)
            self.wait_for("communicator_trials_allowed_seconds")

        self.scene("a search for plans", ["communicator_trials_allowed_seconds"], search)
        searching.close()

        def abandon():
            started = self.page()["operations_started_total"]
            job.submit(self.comm, 8, [0])
            self.wait_until(lambda: self.page()["operations_started_total"] != started, "the start of an operation")
            job.ranks[1].must("submit", self.comm, 8, 0)
            job.ranks[1].ask("submit", self.comm, 8, 0)
            self.wait_for("steps_failed_total")

        self.scene("a step abandoned on the other machine", [
            "steps_failed_total", "operations_failed_total", "communicator_term"], abandon)

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


@unittest.skipUnless(isolation_possible(), "needs a link of its own")
class Measured(ClusterCase):
    """Figures have the size of what they tell, wherever they are shown."""

    CONFIG = {"policy": {"codec": "fp32"}, "timeouts": {"late_warning_ms": 1000}}
    LATE_S, ROUND_TRIP_S = 8.0, 0.020

    @classmethod
    def config_of(cls, machine):
        return merged(cls.CONFIG, {"metrics": {"address": cls.machines[machine].address, "port": PORT}})

    def figure(self, name):
        """The largest of the page."""
        machine = self.machines[HERE]
        text = machine.run(["/usr/bin/python3", "-c", "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())",
                            f"http://{machine.address}:{PORT}/metrics"], capture_output=True, text=True, check=True).stdout
        return max(map(float, re.findall(rf"^cgxd_{name}{{.*}} (\S+)$", text, re.MULTILINE)), default=0)

    def shown(self, *words):
        """As a person sees it."""
        tool = [binary("cgxctl"), "--socket", self.daemons[HERE].control, *words]
        return self.machines[HERE].run(tool, capture_output=True, text=True, check=True).stdout

    def on_terminal(self, columns, *words):
        """The lines that a terminal of so many columns is given."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, columns, 0, 0))
        tool = [binary("cgxctl"), "--socket", self.daemons[HERE].control, *words]
        process = self.machines[HERE].start(tool, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # all of it is read and the other end closed
            while part := os.read(ours, 65536):
                text += part
        os.close(ours)
        self.assertEqual(process.wait(10), 0, text)
        return text.decode().replace("\r", "").splitlines()

    def test_of_how_the_arithmetic_suits_this_machine_take_ten_milliseconds(self):
        took, daemon = [], self.daemons[HERE]
        for _ in range(20):
            tuning = daemon.control_tool("status")["tuning"]
            self.assertEqual({each["name"] for each in tuning["operations"]}, TUNED)
            took.append(int(tuning["measured_ns"]) / 1e9)
            if took[-1] < TUNING_S:
                break
            daemon.process.terminate()
            daemon.process.wait(10)
            daemon.start()
        figure("a daemon measures its arithmetic", min(took), TUNING_S)
        self.assertLess(min(took), TUNING_S, took)

    def test_tables_fit_the_terminal_with_what_matters_most(self):
        job = self.job([HERE, OTHER])
        job.step(job.join(), 1)
        for words, title in ((("jobs",), "RATIO"), (("tensors",), "CODEC"), (("peers",), "STATE"), (("codecs",), "STRENGTH"),
                             (("status",), ""), (("policy", "history"), "SINCE STEP")):
            with self.subTest(words):
                narrow, wide = self.on_terminal(80, *words), self.on_terminal(400, *words)
                self.assertLessEqual(max(map(len, narrow)), 80)
                self.assertIn(title, "\n".join(narrow))
                self.assertEqual(len(narrow), len(wide))
                self.assertGreater(max(map(len, wide)), 60)

    def told_rtt_s(self):
        peer, = self.daemons[HERE].control_tool("peers")["peers"]
        return int(peer["rtt_ns"]) * 1e-9

    def test_a_late_rank_and_a_distant_machine_are_measured(self):
        job = self.job([HERE, OTHER])
        comm = job.join()
        job.step(comm, 1)
        near_s = self.figure("peer_rtt_seconds")
        with distant(self.machines[OTHER], self.ROUND_TRIP_S):
            began = time.monotonic()
            job.submit(comm, 2, [0])
            low, high = 0.9 * self.ROUND_TRIP_S, 3 * self.ROUND_TRIP_S
            self.wait_until(lambda: low < self.figure("peer_rtt_seconds") < high, f"the round trip, before {near_s}", self.LATE_S)
            self.wait_until(lambda: low < self.told_rtt_s() < high, "the round trip that cgxctl tells", self.LATE_S)
            time.sleep(max(0, began + self.LATE_S - time.monotonic()))
            late_s = self.figure("communicator_late_seconds")
            waited_s = time.monotonic() - began
            self.assertTrue(self.LATE_S - 1 < late_s <= waited_s, (late_s, waited_s))
            for words in (("jobs",), ("status",)):
                found = re.search(r"rank 1\b.* (\d+(?:\.\d)?) s late", self.shown(*words))
                self.assertTrue(found, self.shown(*words))
                self.assertGreater(float(found[1]), self.LATE_S - 1)
            job.submit(comm, 2, [1])
            job.must("wait", comm, 2)
        self.wait_until(lambda: self.figure("communicator_late_seconds") == 0, "the end of the wait")


if __name__ == "__main__":
    unittest.main()

"""The wall clock of a machine is set, by an hour or by ten years, while jobs run and while they meet.

Every process of a machine sees the clock that its test sets (wall_clock.c). The machine's own is never touched.
"""

import datetime
import itertools
import json
import mmap
import os
import statistics
import struct
import time
import unittest

from cluster_case import RAW, ClusterCase, figure
from daemons import BUILD
from machines import isolation_possible
from ranks import Job

HOUR_S = 3600
YEARS_S = 3650 * 24 * HOUR_S
JUMPS_S = (HOUR_S, -HOUR_S, YEARS_S, -YEARS_S)
STEPS = 12            # between two jumps
AT_ONCE_S = 2.0       # what a busy machine may need for a step or a meeting
HEALED_S, HEAL_S = 3.0, 8.0
UNREACHABLE_S = 10.0  # daemon/mesh/mesh_agent.h
HANDSHAKE_S = 2.0     # after which one call is given up
JOIN_MS = 30000
METRICS_PORT = 9466
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"


class WallClock:
    """One machine's."""

    def __init__(self, path):
        self.path = path
        with open(path, "wb") as file:
            file.write(bytes(8))
        with open(path, "r+b") as file:
            self._ahead = mmap.mmap(file.fileno(), 8)

    def prefix(self):
        """Of a command line that is to see it."""
        shim = os.path.join(BUILD, "lib", "libe2e_wall_clock.so")
        return ("env", f"LD_PRELOAD={shim}", f"CGX_TEST_WALL_CLOCK={self.path}")

    def set(self, ahead_s):
        struct.pack_into("<q", self._ahead, 0, int(ahead_s * 1e9))

    def now(self):
        return time.time() + struct.unpack("<q", self._ahead[:])[0] * 1e-9


class WallClocks(ClusterCase):
    CONFIG = {**RAW, "metrics": {"port": METRICS_PORT}, "timeouts": {"handshake_ms": int(1000 * HANDSHAKE_S)}}

    @classmethod
    def config_of(cls, machine):
        return {**cls.CONFIG, "control": {"audit_file": os.path.join(cls.directory, f"audit{machine}.jsonl")}}

    @classmethod
    def prefix_of(cls, machine):
        cls.clocks = cls.clocks if machine else []
        cls.clocks.append(WallClock(os.path.join(cls.directory, f"clock{machine}")))
        return cls.clocks[machine].prefix()

    def setUp(self):
        self.addCleanup(self.set_clocks, 0)

    def set_clocks(self, ahead_s, machines=(0, 1)):
        for machine in machines:
            self.clocks[machine].set(ahead_s)

    def job(self, places):
        job = Job(self.daemons, places, prefix=self.clocks[0].prefix())
        self.addCleanup(job.close)
        return job

    def jumps(self):
        """Of one machine's clock, of the other's, of both; each from the right time."""
        for ahead_s, machines in itertools.product(JUMPS_S, ((0,), (1,), (0, 1))):
            print(f"{ahead_s / HOUR_S:+g} h on {machines}", flush=True)
            yield ahead_s, machines
            self.set_clocks(0)

    def test_that_jump_end_no_job_and_change_no_steps_time(self):
        job = self.job([0, 1, 1])
        comm = job.join()
        number = itertools.count(1)
        before = statistics.median(job.step(comm, next(number)) for _ in range(STEPS))
        said = [len(daemon.log()) for daemon in self.daemons]
        for ahead_s, machines in self.jumps():
            step = next(number)
            job.submit(comm, step, [0])
            job.ranks[0].send("wait", comm, step)  # the clock is set while it waits
            self.set_clocks(ahead_s, machines)
            job.submit(comm, step, [1, 2])
            job.must("wait", comm, step, ranks=[1, 2])
            self.assert_status(job.ranks[0].receive(), "OK")
            job.check(comm, step)
            times = [job.step(comm, next(number)) for _ in range(STEPS)]
            self.assertLess(max(times), AT_ONCE_S)
            self.assertLess(statistics.median(times), 3 * before + 0.05)
        for daemon, length in zip(self.daemons, said):
            self.assertNotRegex(daemon.log()[length:], r"(?m)^\S+ (warning|error) ")

    def test_that_jump_disturb_no_meeting(self):
        for ahead_s, machines in self.jumps():
            job = self.job([0, 1, 1])
            for rank in (0, 2):
                job.create_soon(rank)
            self.set_clocks(ahead_s, machines)
            job.create_soon(1)
            answers = [rank.receive() for rank in job.ranks]
            for answer in answers:
                self.assert_status(answer, "OK")
            self.assertLess(answers[1].seconds, AT_ONCE_S)
            job.close()

    @unittest.skipUnless(isolation_possible(), "cutting a link needs namespaces, hence root")
    def test_that_jump_before_a_network_is_there_delay_no_meeting(self):
        for ahead_s in (HOUR_S, -HOUR_S):
            with self.subTest(f"{ahead_s / HOUR_S:+g} h"):
                answers, jumped = self.meet_over_a_cut(ahead_s, healed_s=HEALED_S)
                for answer in answers:
                    self.assert_status(answer, "OK")
                figure("a meeting after the cut", max(a.ended for a in answers) - jumped - HEALED_S, HEAL_S)
                self.assertLess(max(answer.ended for answer in answers), jumped + HEALED_S + HEAL_S)

    @unittest.skipUnless(isolation_possible(), "cutting a link needs namespaces, hence root")
    def test_that_are_set_back_hide_from_nobody_that_a_daemon_cannot_be_reached(self):
        answers, jumped = self.meet_over_a_cut(-HOUR_S)
        told = min(answers, key=lambda answer: answer.ended)  # the side that dials
        self.assert_status(told, "PEER_LOST", "cannot be reached for 10 s")
        figure("told of an unreachable daemon", told.ended - jumped, UNREACHABLE_S + 2 * HANDSHAKE_S)
        self.assertLess(told.ended - jumped, UNREACHABLE_S + 2 * HANDSHAKE_S)

    def meet_over_a_cut(self, ahead_s, healed_s=None):
        """The clocks are set when a daemon has called the other in vain."""
        self.machines.lose(self.machines[1], 1)
        self.addCleanup(self.machines.lose, self.machines[1], 0)
        job = self.job([0, 1])
        for rank in (0, 1):
            job.create_soon(rank, timeout_ms=JOIN_MS)
        time.sleep(1)
        self.set_clocks(ahead_s)
        jumped = time.monotonic()
        if healed_s is not None:
            time.sleep(healed_s)
            self.machines.lose(self.machines[1], 0)
        answers = [rank.receive(timeout_s=2 * JOIN_MS / 1000) for rank in job.ranks]
        self.machines.lose(self.machines[1], 0)
        self.set_clocks(0)
        job.close()
        return answers, jumped

    # What operators see

    def page(self, path):
        return self.machines[0].run(["/usr/bin/python3", "-c", FETCH, f"http://127.0.0.1:{METRICS_PORT}{path}"],
                                    capture_output=True, text=True, check=True).stdout

    def assert_now(self, unix_s, clock):
        self.assertLess(abs(unix_s - clock.now()), HOUR_S / 2)

    def test_that_jump_show_operators_no_age_or_time_that_cannot_be(self):
        job = self.job([0, 1])
        comm, number = job.join(), itertools.count(1)
        daemon, clock = self.daemons[0], self.clocks[0]
        target = ("-j", job.name, "-c", "grads")
        for window, (ahead_s, machines) in enumerate(self.jumps(), 2):
            job.step(comm, next(number))
            self.set_clocks(ahead_s, machines)
            job.step(comm, next(number))
            self.assertLess(int(daemon.control_tool("status")["uptime_ns"]), HOUR_S * 1e9)
            for peer in daemon.control_tool("peers", *target[:2])["peers"]:
                self.assertLess(int(peer["heartbeat_age_ns"]), 1e9 * AT_ONCE_S)
            events = [int(event["unix_ns"]) for event in daemon.control_tool("events", *target)["events"]]
            self.assertEqual(events, sorted(events))
            self.assert_now(events[0] * 1e-9, clock)
            self.assert_now(events[-1] * 1e-9, clock)
            if self.machines.isolated:
                shown = json.loads(self.page("/status.json"))
                self.assert_now(shown["now"], clock)
                for sample in [one for each in shown["jobs"] for one in each["samples"]]:
                    self.assertLessEqual(sample[0], shown["now"])
                    self.assert_now(sample[0], clock)
            daemon.control_tool("policy", "apply", *target, "--set", f"window={2 + window % 2}", "--wait", "0")
            for _ in range(4):  # it takes force
                job.step(comm, next(number))
            last = daemon.control_tool("policy", "history", *target)["versions"][-1]
            self.assert_now(int(last["unix_ns"]) * 1e-9, clock)
            with open(daemon.config["control"]["audit_file"], encoding="utf-8") as file:
                at = json.loads(file.readlines()[-1])["time"]
            self.assert_now(datetime.datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp(), clock)


if __name__ == "__main__":
    unittest.main()

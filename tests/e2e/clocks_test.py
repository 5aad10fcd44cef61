"""The clocks that take seconds: stopped daemons, silent links, late ranks. All run at the same time.

Each scenario has daemons of its own. It is made ready in the main thread (a process dies with the thread that started
it), then all are watched in parallel, and each test looks at what its scenario saw.
"""

import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from cluster_case import RAW, ClusterCase, figure, stop
from daemons import MESH_PORT, Daemon, free_port, freeze, merged
from machines import isolation_possible
from ranks import Job

PEER_LOST_S = 4.0  # and a heartbeat's time, 0.5 s, until somebody looks
LATE_S = 10.0
BUSY_S = 1.0  # what a machine busy with seven scenarios at once may add


class Scenario:
    """Daemons on some of the machines and one job over them that has made a step."""

    _count = 0

    def __init__(self, machines, places, config=None, timeout_ms=60000):
        Scenario._count += 1
        self.directory = tempfile.mkdtemp(prefix="cgx-e2e-")
        os.chmod(self.directory, 0o755)
        self.daemons = [Daemon(machine, self.directory, merged(RAW, config), port=self.port(machine))
                        for machine in machines]
        self.job = Job(self.daemons, places)
        self.comm = self.job.join(timeout_ms=timeout_ms)
        self.job.step(self.comm, 1)

    @staticmethod
    def port(machine):
        return MESH_PORT + Scenario._count if machine.netns else free_port(machine.address)

    def wait_for_step(self, step, ranks):
        """These ranks begin to wait; nobody answers yet."""
        self.job.submit(self.comm, step, ranks)
        for rank in ranks:
            self.job.ranks[rank].send("wait", self.comm, step)

    def answers(self, ranks):
        return [self.job.ranks[rank].receive() for rank in ranks]

    def close(self):
        self.job.close()
        for daemon in self.daemons:
            stop(daemon)
        subprocess.run(["rm", "-rf", self.directory], check=False)


def stop_a_daemon(machines, victim):
    """The daemon of `victim` is stopped while ranks wait for its rank; then it goes on."""
    scenario = Scenario(machines[:3], [0, 1, 2])
    others = [rank for rank in range(3) if rank != victim]
    scenario.wait_for_step(2, others)

    def watch():
        stopped = time.monotonic()
        freeze(scenario.daemons[victim].process)
        scenario.job.ranks[victim].send("submit", scenario.comm, 2, 0)
        scenario.job.ranks[victim].receive()
        scenario.job.ranks[victim].send("end", scenario.comm, 2)
        scenario.job.ranks[victim].receive()
        scenario.job.ranks[victim].send("wait", scenario.comm, 2)
        answers = scenario.answers([0, 1, 2])
        scenario.daemons[victim].process.send_signal(signal.SIGCONT)
        return scenario, answers, stopped

    return watch


def pause_a_daemon(machines):
    """Two seconds are no reason to give anybody up."""
    scenario = Scenario(machines[:2], [0, 1])
    scenario.wait_for_step(2, [0])

    def watch():
        freeze(scenario.daemons[1].process)
        time.sleep(2.0)
        scenario.daemons[1].process.send_signal(signal.SIGCONT)
        scenario.wait_for_step(2, [1])
        return scenario, scenario.answers([0, 1])

    return watch


def be_late(machines, stopped):
    """Rank 1 comes ten seconds late, or is stopped for as long."""
    scenario = Scenario(machines[:2], [0, 1, 1])
    late = scenario.job.ranks[1]

    def watch():
        scenario.wait_for_step(2, [0, 2])  # not before: other scenarios take their time to be made ready
        if stopped:
            freeze(late.process)
        time.sleep(LATE_S)
        late.process.send_signal(signal.SIGCONT)
        scenario.wait_for_step(2, [1])
        return scenario, scenario.answers([0, 1, 2])

    return watch


def never_come(machines, config=None, timeout_ms=2000):
    """Rank 1 does not come within the communicator's time-out of two seconds."""
    scenario = Scenario(machines[:2], [0, 1, 1], config=config, timeout_ms=timeout_ms)
    began = time.monotonic()
    scenario.wait_for_step(2, [0, 2])
    return lambda: (scenario, scenario.answers([0, 2]), began)


def never_join(machines):
    """Rank 2 has told where it is, but does not create its communicator within join_ms."""
    scenario = Scenario(machines[:2], [0, 0, 1, 1], config={"timeouts": {"join_ms": 2000}})
    job = scenario.job
    began = time.monotonic()
    for rank in (0, 1, 2, 3):
        job.create_soon(rank, "late", "hold" if rank == 2 else "-")

    def watch():
        answers = scenario.answers([0, 1, 3])
        open(job.path("go"), "w", encoding="utf-8").close()
        return scenario, answers, began

    return watch


def cut_a_link(machines):
    """Machine 3's link goes down without a word: TCP would notice in minutes."""
    scenario = Scenario([machines[0], machines[3]], [0, 1, 1])
    scenario.wait_for_step(2, [0, 1])
    subprocess.run(["ip", "-n", machines[3].netns, "link", "set", "eth0", "down"], check=True)
    cut = time.monotonic()

    def watch():
        answers = scenario.answers([0, 1])
        subprocess.run(["ip", "-n", machines[3].netns, "link", "set", "eth0", "up"], check=True)
        return scenario, answers, cut

    return watch


class Clocks(ClusterCase):
    MACHINES = 4

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        prepared = {
            "stopped daemon": stop_a_daemon(cls.machines, 2),
            "stopped coordinator": stop_a_daemon(cls.machines, 0),
            "paused daemon": pause_a_daemon(cls.machines),
            "late rank": be_late(cls.machines, stopped=False),
            "stopped rank": be_late(cls.machines, stopped=True),
            "rank that never comes": never_come(cls.machines),
            "rank that never comes, by default": never_come(
                cls.machines, config={"timeouts": {"late_warning_ms": 1000, "communicator_ms": 2000}}, timeout_ms=0),
            "rank that never joins": never_join(cls.machines),
        }
        if isolation_possible():
            prepared["cut link"] = cut_a_link(cls.machines)
        with ThreadPoolExecutor(len(prepared)) as pool:
            cls.outcomes = {name: pool.submit(watch) for name, watch in prepared.items()}

    def outcome(self, name):
        outcome = self.outcomes[name].result()
        self.addCleanup(outcome[0].close)
        return outcome

    def assert_in_time(self, answers, since, limit_s):
        slowest = max(answer.ended for answer in answers) - since
        figure(self.id().rsplit(".", 1)[-1], slowest, limit_s)
        self.assertLess(slowest, limit_s + BUSY_S)

    def assert_machine_serves(self, scenario):
        self.assert_daemons_serve(scenario.daemons)

    def check_stopped(self, name, victim):
        scenario, answers, stopped = self.outcome(name)
        for rank, answer in enumerate(answers):
            if rank == victim:
                self.assert_status(answer, "DAEMON_LOST", scenario.daemons[victim].socket)
            else:
                self.assert_status(answer, "PEER_LOST", f"rank {victim}", scenario.daemons[victim].machine.address)
        self.assert_in_time([a for rank, a in enumerate(answers) if rank != victim], stopped, PEER_LOST_S + 0.5)
        self.assert_in_time([answers[victim]], stopped, PEER_LOST_S + 0.5)
        self.assert_daemons_serve(scenario.daemons)

    def test_a_stopped_daemon_is_named_and_serves_again_when_it_goes_on(self):
        self.check_stopped("stopped daemon", 2)

    def test_a_stopped_coordinator_is_named_and_serves_again_when_it_goes_on(self):
        self.check_stopped("stopped coordinator", 0)

    def test_a_daemon_stopped_for_two_seconds_loses_nothing(self):
        scenario, answers = self.outcome("paused daemon")
        for answer in answers:
            self.assert_status(answer, "OK")
        scenario.job.check(scenario.comm, 2)

    def check_late(self, name):
        scenario, answers = self.outcome(name)
        for answer in answers:
            self.assert_status(answer, "OK")
        scenario.job.check(scenario.comm, 2)
        for daemon in scenario.daemons:
            warned = [int(s) for s in re.findall(r"warning .*step 2 has waited (\d+) s for rank 1\b", daemon.log())]
            self.assertTrue(0 < len(warned) <= 2, daemon.log())
            for seconds, at in zip(warned, (5, 10)):
                self.assertIn(seconds, range(at, at + 3), daemon.log())  # looked at twice a second, on a busy machine

    def test_a_late_rank_is_warned_about_by_name_everywhere_and_not_given_up(self):
        self.check_late("late rank")

    def test_a_stopped_rank_is_warned_about_by_name_everywhere_and_not_given_up(self):
        self.check_late("stopped rank")

    def test_a_rank_that_never_comes_is_named_at_the_communicators_time_out_and_the_step_redone(self):
        scenario, answers, began = self.outcome("rank that never comes")
        for answer in answers:
            self.assert_status(answer, "TIMED_OUT", "rank 1")
        self.assert_in_time(answers, began, 2.5)
        scenario.job.must("redo", scenario.comm, ranks=[0, 2])
        # The late rank had said nothing of the step: it is not told, and does it with the others.
        scenario.job.step(scenario.comm, 2)

    def test_a_rank_that_never_comes_is_named_at_the_daemons_time_out_where_the_program_gives_none(self):
        _, answers, began = self.outcome("rank that never comes, by default")
        for answer in answers:
            self.assert_status(answer, "TIMED_OUT", "rank 1")
        self.assert_in_time(answers, began, 2.5)

    def test_a_rank_that_never_joins_is_named_at_the_joins_time_out(self):
        scenario, answers, began = self.outcome("rank that never joins")
        for answer in answers:
            self.assertEqual(answer.status, "TIMED_OUT", answer.text)
            self.assertRegex(answer.text, r"missing: (rank 2|machine 1 .* with ranks 2, 3)")
        self.assert_in_time(answers, began, 2.5)
        self.assert_status(scenario.job.ranks[2].receive(), "TIMED_OUT")

    @unittest.skipUnless(isolation_possible(), "cutting a link needs namespaces, hence root")
    def test_a_silently_cut_link_is_noticed_on_both_sides(self):
        scenario, answers, cut = self.outcome("cut link")
        self.assert_status(answers[0], "PEER_LOST", "ranks 1, 2")
        self.assert_status(answers[1], "PEER_LOST", "rank 0")
        self.assert_in_time(answers, cut, PEER_LOST_S + 0.5)
        self.assert_daemons_serve(scenario.daemons)


if __name__ == "__main__":
    unittest.main()

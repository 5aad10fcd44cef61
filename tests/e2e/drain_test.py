"""A daemon that is asked to stop: jobs leave between two steps, whole, are told why, and meet again afterwards."""

import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import cgx
from cluster_case import RAW, ClusterCase, figure
from daemons import binary, merged
from machines import isolation_possible
from ranks import Tensor
from troubles import slow

DRAIN_S = 5.0
BUSY_S = 2.0
LIMIT_S = 1.0  # of a drain that says its own
LARGE = (Tensor("large", (3000, 1003)), Tensor("small", (64,)))


class Drain(ClusterCase):
    CONFIG = merged(RAW, {"timeouts": {"drain_ms": int(1000 * DRAIN_S)}})

    @classmethod
    def config_of(cls, machine):
        return merged(cls.CONFIG, {"control": {"audit_file": os.path.join(cls.directory, f"audit{machine}.jsonl")}})

    def tearDown(self):
        for daemon in self.daemons:
            if daemon.process.poll() is not None:
                daemon.start()

    @staticmethod
    def train_until_told(job, comm, step):
        """Steps until one is not made; returns the answers to that one."""
        while True:
            step += 1
            job.all("submit", comm, step, *range(len(job.tensors)))
            job.all("end", comm, step)
            answers = job.all("wait", comm, step)
            if not all(answer.ok for answer in answers):
                return answers

    def stop_soon(self, daemon, how):
        timer = threading.Timer(0.3, how)
        timer.start()
        self.addCleanup(timer.join)

    def test_a_training_job_leaves_between_two_steps_on_all_machines_and_is_told_why(self):
        for name, stopped in (("the coordinator's", 0), ("another", 1)):
            with self.subTest(name):
                job = self.job([0, 1, 1], arena_bytes=64 << 20)
                comm = job.join(tensors=LARGE)
                job.step(comm, 1)
                daemon = self.daemons[stopped]
                self.stop_soon(daemon, lambda d=daemon: d.process.send_signal(signal.SIGTERM))
                answers = self.train_until_told(job, comm, 1)
                for answer in answers:
                    self.assertFalse(answer.ok, "a step is whole everywhere or nowhere")
                    self.assertIn(answer.status, ("UNAVAILABLE", "DAEMON_LOST"), answer.text)
                    self.assertIn("is being stopped (SIGTERM of process", answer.text)
                self.assertEqual(daemon.process.wait(DRAIN_S + BUSY_S), 0)
                self.assertIn("drained=yes", daemon.log())
                daemon.start()
                self.assert_daemons_serve()

    def test_what_does_not_leave_in_time_is_cut_off_by_name(self):
        job = self.job([0, 1])
        comm = job.join()
        job.submit(comm, 1, ranks=[0])  # the other never comes
        self.wait_until(lambda: self.heard(job, 1, [0]), "the reading of what was submitted")
        job.ranks[0].send("wait", comm, 1)
        began = time.monotonic()
        self.daemons[0].process.send_signal(signal.SIGTERM)
        answer = job.ranks[0].receive()
        self.assertIn(answer.status, ("UNAVAILABLE", "DAEMON_LOST"), answer.text)
        self.assertEqual(self.daemons[0].process.wait(DRAIN_S + BUSY_S), 0)
        figure("a drain that is cut off", time.monotonic() - began, DRAIN_S)
        self.assertGreaterEqual(time.monotonic() - began, DRAIN_S - 0.1)
        self.assertRegex(self.daemons[0].log(), rf"cut off .*'grads' of job '{job.name}' in step 1")

    def told_at_stop(self, daemon):
        """What a daemon says is in flight when it is asked to stop; a second signal ends it at once."""
        before = len(daemon.log())
        daemon.process.send_signal(signal.SIGTERM)
        self.wait_until(lambda: "in_flight=" in daemon.log()[before:], "the line about the stop")
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.process.wait(DRAIN_S - 0.5), 0)
        return daemon.log().split("in_flight=")[-1].split("limit_ms=")[0]

    def test_what_is_in_flight_is_named_by_step_and_group(self):
        for places, what in (([0, 0, 1], "waits for ranks"), ([0, 1, 1], "groups 0")):  # the machine's own ranks, the other machine
            with self.subTest(what):
                job = self.job(places)
                comm = job.join()
                job.submit(comm, 1, ranks=[0])
                self.wait_until(lambda: self.heard(job, 1, [0]), "the reading of what was submitted")
                self.assertIn(f"communicator 'grads' of job '{job.name}', step 1: {what}", self.told_at_stop(self.daemons[0]))
                self.tearDown()

    def test_the_daemon_of_a_configuration_is_drained_by_its_own_program(self):
        daemon = self.daemons[0]
        job = self.job([0, 1])
        job.submit(job.join(), 1, ranks=[0])  # the other never comes
        self.wait_until(lambda: self.heard(job, 1, [0]), "the reading of what was submitted")
        drain = [binary("cgxd"), "--config", daemon.config_path, "--drain"]
        refused = daemon.machine.run([*drain, "soon"], capture_output=True, text=True)
        self.assertEqual((refused.returncode, daemon.process.poll()), (2, None))
        began = time.monotonic()
        done = daemon.machine.run([*drain, str(LIMIT_S)], capture_output=True, text=True)
        seconds = time.monotonic() - began
        self.assertEqual((done.returncode, done.stderr), (1, ""), "not everything has left")
        self.assertIn("drained: 1 communicators of 1 sessions were told, the daemon has ended", done.stdout)
        self.assertIn(f"cut off: communicator 'grads' of job '{job.name}' in step 1", done.stdout)
        self.assertEqual(daemon.process.wait(20), 0)
        self.assertTrue(LIMIT_S - 0.1 <= seconds < DRAIN_S, f"{seconds} s, not drain_ms")
        self.assertRegex(daemon.log(), r"cut off .*in step 1")
        again = daemon.machine.run(drain, capture_output=True, text=True)
        self.assertEqual(again.returncode, 3)
        self.assertIn("control.sock: ", again.stderr)

    def test_a_second_operator_learns_the_same_and_cuts_nothing_off_unless_no_time_is_left(self):
        daemon = self.daemons[0]
        job = self.job([0, 1])
        job.submit(job.join(), 1, ranks=[0])  # the other never comes
        self.wait_until(lambda: self.heard(job, 1, [0]), "the reading of what was submitted")
        began = time.monotonic()
        words = [binary("cgxctl"), "--socket", daemon.control, "drain", "--limit"]
        drains, before = [], self.drains_written(daemon)
        for limit_s in (30, 30, 0):
            drains.append(daemon.machine.start([*words, str(limit_s)], stdout=subprocess.PIPE, text=True))
            self.wait_until(lambda: self.drains_written(daemon) == before + len(drains), "the line of the audit")
            if limit_s:
                time.sleep(0.3)
                self.assertIsNone(daemon.process.poll())
        for each in drains:
            out, _ = each.communicate(timeout=10)
            self.assertEqual(each.returncode, 1)
            self.assertIn(f"cut off: communicator 'grads' of job '{job.name}' in step 1", out)
        self.assertEqual(daemon.process.wait(20), 0)
        self.assertLess(time.monotonic() - began, 10)

    def test_more_operators_than_it_keeps_waiting_learn_when_it_has_ended(self):
        daemon = self.daemons[0]
        job = self.job([0, 1])
        job.submit(job.join(), 1, ranks=[0])  # the other never comes
        self.wait_until(lambda: self.heard(job, 1, [0]), "the reading of what was submitted")
        words = [binary("cgxctl"), "--socket", daemon.control, "drain", "--limit", str(3 * LIMIT_S)]
        before = self.drains_written(daemon)
        drains = [daemon.machine.start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
        self.wait_until(lambda: self.drains_written(daemon) == before + len(drains), "the lines of the audit")
        said = [each.communicate(timeout=20) for each in drains]
        self.assertEqual(daemon.process.wait(20), 0)
        self.assertEqual([each.returncode for each in drains], [1] * len(drains), said)
        told = sum(f"cut off: communicator 'grads' of job '{job.name}'" in out for out, _ in said)
        self.assertEqual(told, 4)
        self.assertEqual(sum("the daemon has ended" in err for _, err in said), len(drains) - told, said)

    def drain_of_an_open_step(self, limit_s):
        """A daemon that an operator drains, and the time since it does."""
        daemon = self.daemons[0]
        job = self.job([0, 1])
        job.submit(job.join(), 1, ranks=[0])  # the other never comes
        self.wait_until(lambda: self.heard(job, 1, [0]), "the reading of what was submitted")
        began = time.monotonic()
        done = daemon.control_tool("drain", "--limit", str(limit_s), "--wait", "0", "--reason", "new kernel", check=False)
        self.assertIn("still draining", done.stderr)
        return daemon, began

    def test_the_first_signal_during_a_drain_leaves_steps_as_long_as_a_signal_does(self):
        daemon, _ = self.drain_of_an_open_step(600)
        warned = daemon.control_tool("status")["warnings"]
        self.assertRegex(warned[-1], r"has been stopping for \d+ s \(drain by .*new kernel\); what has not left in 5\d\d s is cut off")
        signalled = time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        self.wait_until(lambda: "goes on stopping" in daemon.log(), "the line about the signal")
        self.assertRegex(daemon.control_tool("status")["warnings"][-1], rf"what has not left in [0-{int(DRAIN_S) - 1}] s is cut off")
        self.assertEqual(daemon.process.wait(DRAIN_S + BUSY_S), 0)
        self.assertGreaterEqual(time.monotonic() - signalled, DRAIN_S - 0.1)

    def test_the_first_signal_leaves_no_more_time_than_the_operator_and_the_second_none(self):
        daemon, began = self.drain_of_an_open_step(2 * LIMIT_S)
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.process.wait(DRAIN_S), 0)
        self.assertGreaterEqual(time.monotonic() - began, 2 * LIMIT_S - 0.1)
        daemon.start()
        daemon, _ = self.drain_of_an_open_step(600)
        before = len(daemon.log())
        daemon.process.send_signal(signal.SIGTERM)
        self.wait_until(lambda: "goes on stopping" in daemon.log()[before:], "the line about the signal")
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.process.wait(DRAIN_S - 0.5), 0)

    @staticmethod
    def drains_written(daemon):
        with open(daemon.config["control"]["audit_file"], encoding="utf-8") as audit:
            return audit.read().count('"drain"')

    def test_a_drain_that_is_not_awaited_goes_on(self):
        daemon = self.daemons[0]
        job = self.job([0, 1])
        job.submit(job.join(), 1, ranks=[0])  # the other never comes
        self.wait_until(lambda: self.heard(job, 1, [0]), "the reading of what was submitted")
        done = daemon.control_tool("drain", "--wait", "0", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("still draining", done.stderr)
        self.assertIsNone(daemon.process.poll())
        self.assertEqual(daemon.process.wait(DRAIN_S + BUSY_S), 0)

    def test_operators_drain_with_words_others_may_not(self):
        job = self.job([0, 1])
        comm = job.join()
        job.step(comm, 1)
        daemon = self.daemons[1]
        answer = daemon.control_tool("drain", "--reason", "new kernel tonight")
        self.assertEqual(answer["communicators"], 1)
        self.assertEqual(answer.get("cutOff", []), [])
        self.assertEqual(daemon.process.wait(20), 0)
        self.assertIn("drain by uid", daemon.log())
        for rank in job.ranks:
            told = [rank.ask(*words).text for words in (("submit", comm, 2, 0), ("end", comm, 2), ("wait", comm, 2))]
            self.assertIn("new kernel tonight", " ".join(told))


@unittest.skipUnless(isolation_possible(), "links that are slow need network namespaces")
class SlowLink(ClusterCase):
    """Frames for the other machine wait in this one's daemon and system."""

    CONFIG = merged(RAW, {"policy": {"collective": "allgather"}, "timeouts": {"drain_ms": int(1000 * DRAIN_S)}})

    def stop_twice(self, daemon):
        daemon.process.send_signal(signal.SIGTERM)
        self.wait_until(lambda: "stopping" in daemon.log(), "the line about the stop")
        daemon.process.send_signal(signal.SIGTERM)

    def test_a_daemon_whose_frame_is_half_way_out_ends_as_it_is_told(self):
        job = self.job([0, 1], arena_bytes=64 << 20)
        comm = job.join(tensors=LARGE)
        job.step(comm, 1)
        with slow(self.machines[1], "20mbit"):
            job.submit(comm, 2)
            time.sleep(0.3)
            self.stop_twice(self.daemons[0])
            self.assertEqual(self.daemons[0].process.wait(DRAIN_S + BUSY_S), 0, self.daemons[0].log())
        self.daemons[0].start()

    def test_the_last_frames_of_a_job_leave_before_its_daemon_does(self):
        """The first machine has all of its results when the other still lacks what it was sent."""
        job = self.job([0, 1], arena_bytes=64 << 20)
        comm = job.join(tensors=LARGE)
        job.step(comm, 1)
        with slow(self.machines[1], "20mbit"):
            job.submit(comm, 2)
            job.ranks[1].send("wait", comm, 2)
            job.ranks[0].must("wait", comm, 2)
            self.assertFalse(select.select([job.ranks[1].process.stdout], [], [], 0)[0], "its results come later")
            job.ranks[0].must("close")
            self.daemons[0].process.send_signal(signal.SIGTERM)
            self.assertTrue((answer := job.ranks[1].receive()).ok, answer.text)
            self.assertEqual(self.daemons[0].process.wait(DRAIN_S + BUSY_S), 0)
        self.assertIn("drained=yes", self.daemons[0].log())
        self.daemons[0].start()
        for index in range(len(LARGE)):
            self.assertEqual(job.result(comm, 1, index).tobytes(), job.expected(2, index).tobytes())


class Run(unittest.TestCase):
    def test_of_a_daemon_that_runs_a_command_the_command_is_told(self):
        with tempfile.TemporaryDirectory() as directory:
            config, control = os.path.join(directory, "cgxd.yaml"), os.path.join(directory, "control.sock")
            with open(config, "w", encoding="utf-8") as file:
                json.dump({"run_directory": directory, "control": {"socket": control}}, file)
            with subprocess.Popen([binary("cgxd"), "--config", config, "run", "--", "sleep", "60"], stderr=subprocess.PIPE) as run:
                self.assertIn(b"serves", run.stderr.readline())
                done = subprocess.run([binary("cgxctl"), "--socket", control, "drain"], capture_output=True, text=True, timeout=20)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(run.wait(20), 128 + signal.SIGTERM)

    def test_the_commands_jobs_leave_before_it_is_told(self):
        with tempfile.TemporaryDirectory() as directory:
            command = [binary("cgxd"), "run", "--set", f"run_directory={directory}", "--", "sleep", "60"]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
                self.assertIn("serves", run.stderr.readline())
                with cgx.Session(socket=os.path.join(directory, f"run-{run.pid}.sock"), job="beside") as session:
                    comm = session.communicator("grads")
                    tensors = [comm.register(name, session.empty(8)) for name in ("one", "two")]
                    comm.commit()
                    comm.submit(0, tensors[:1])  # the other never comes
                    began = time.monotonic()
                    done = subprocess.run([binary("cgxctl"), "--socket", os.path.join(directory, f"run-{run.pid}-control.sock"),
                                           "drain", "--limit", str(LIMIT_S)], capture_output=True, text=True, timeout=20)
                    self.assertEqual((done.returncode, done.stderr), (1, ""))
                    self.assertIn("cut off: communicator 'grads' of job 'beside' in step 0", done.stdout)
                    self.assertGreaterEqual(time.monotonic() - began, LIMIT_S - 0.1)
                    self.assertEqual(run.wait(20), 128 + signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()

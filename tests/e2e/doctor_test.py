"""Twelve mistakes in setting up two machines: cgxctl doctor names machine and key of each before a job, a job on both sides.

All are made at the same time, each on machines of its own.
"""

import json
import os
import re
import shutil
import socket
import tempfile
import time
import unittest

import mistakes
from cluster_case import ClusterCase
from daemons import MESH_PORT, binary, stopped
from machines import Machines, isolation_possible
from mistakes import LIMIT_S, MISTAKES, Attempt

JOB_S = 30.0  # after which a rank that says nothing is given up


@unittest.skipUnless(isolation_possible() and mistakes.have_what_it_takes(), "needs root, network and UTS namespaces")
class TwelveMistakes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        mistakes.load_torch()
        directory = tempfile.mkdtemp(prefix="cgx-doctor-")
        cls.addClassCleanup(shutil.rmtree, directory, ignore_errors=True)
        os.chmod(directory, 0o755)
        cls.machines = Machines(2 * len(MISTAKES))
        cls.addClassCleanup(cls.machines.close)
        cls.attempts = {mistake.name: Attempt(mistake, [cls.machines[2 * i], cls.machines[2 * i + 1]], directory)
                        for i, mistake in enumerate(MISTAKES)}
        for attempt in cls.attempts.values():
            attempt.set_up()
        mistakes.in_parallel([attempt.ask_doctor for attempt in cls.attempts.values()])
        jobs = [attempt for attempt in cls.attempts.values() if attempt.mistake.job]
        for attempt in jobs:
            attempt.start_job()
        deadline = time.monotonic() + JOB_S
        for attempt in jobs:
            attempt.finish_job(deadline)

    def assert_doctor(self, attempt):
        mistake, done = attempt.mistake, attempt.doctor
        said = f"{mistake.name}: exit {done.returncode} after {attempt.doctor_s:.1f} s\n{done.stdout}{done.stderr}"
        self.assertEqual(done.returncode, 1, said)
        self.assertLess(attempt.doctor_s, LIMIT_S, said)
        address = attempt.machines[mistake.machine].address
        lines = [line for line in done.stdout.splitlines() if line.startswith((f"{attempt.culprit}: ", f"{address}: "))]
        self.assertTrue(any(f": {mistake.key}: " in line for line in lines), said)

    def assert_job(self, attempt):
        mistake = attempt.mistake
        key = mistake.job_key or mistake.key
        machine = attempt.machines[mistake.machine]
        for rank, answer in enumerate(attempt.answers):
            self.assertIsNotNone(answer, f"{mistake.name}: rank {rank} says nothing for {JOB_S:.0f} s")
            seconds, text = answer
            said = f"{mistake.name}: rank {rank} after {seconds:.1f} s: {text or 'trained'}"
            self.assertTrue(attempt.culprit in text or machine.address in text, said)
            self.assertIn(key, text, said)
            self.assertLess(seconds, LIMIT_S, said)


class NothingIsWrong(ClusterCase):
    """Daemons as they should be, and a job that does not mind being looked at."""

    LOOKS = 20

    def setUp(self):
        super().setUp()
        self.await_no_job()

    def doctor(self, place, check=True):
        other = self.machines[1 - place].address
        return self.daemons[place].control_tool("doctor", f"{other}:{MESH_PORT}", check=check)

    def test_both_sides_see_each_other_and_find_nothing(self):
        for place in (0, 1):
            seen = self.doctor(place)
            self.assertEqual(seen.get("findings", []), [])
            self.assertEqual([other["address"] for other in seen["others"]],
                             [f"{self.machines[1 - place].address}:{MESH_PORT}"])

    def test_a_job_is_not_disturbed_by_looking_at_its_ports(self):
        job = self.job([0, 1])
        comm = job.join()
        for step in range(1, self.LOOKS + 1):
            self.assertEqual(self.doctor(step % 2).get("findings", []), [])
            job.step(comm, step)

    def test_all_daemons_of_a_job_are_shown(self):
        job = self.job([0, 1])
        job.step(job.join(), 1)
        seen = self.daemons[0].control_tool("status", "--all")
        self.assertEqual(seen["here"]["address"], f"{self.machines[0].address}:{MESH_PORT}")
        self.assertEqual([other["address"] for other in seen["others"]], [f"{self.machines[1].address}:{MESH_PORT}"])
        self.assertGreater(int(seen["others"][0]["totals"]["gradient_bytes"]), 0)
        self.assertEqual(int(seen["others"][0]["totals"]["communicators"]), 1)

    def test_a_job_is_shown_as_each_of_its_daemons_sees_it(self):
        job = self.job([0, 1, 1])
        comm = job.join()
        job.step(comm, 1)
        name = socket.gethostname()
        seen = self.daemons[0].control_tool("jobs", "--all", "-j", job.name)
        self.assertEqual(seen["findings"], [])
        self.assertEqual({one["machine"] for one in seen["communicators"]}, {name})
        ranks = {one.get("local_machine", 0): [rank.get("rank", 0) for rank in one["rank_list"] if rank.get("local")]
                 for one in seen["communicators"]}
        self.assertEqual(ranks, {0: [0], 1: [1, 2]})
        tensors = self.daemons[1].control_tool("tensors", "--all", "-j", job.name)
        other, = tensors["others"]
        self.assertEqual([one["name"] for one in other["tensors"]], [tensor.name for tensor in job.tensors])
        for words, line in (("jobs", rf"(?m)^{name} +{job.name} +grads "), ("tensors", rf"(?m)^{name} +1 +3 ")):
            shown = self.machines[0].run([binary("cgxctl"), "--socket", self.daemons[0].control, words, "--all", "-j", job.name],
                                         capture_output=True, text=True, check=True).stdout
            self.assertEqual(len(re.findall(line, shown)), 2, shown)

    def test_a_daemon_of_a_job_that_does_not_answer_is_named(self):
        job = self.job([0, 1])
        job.step(job.join(), 1)
        with stopped(self.daemons[1].process):
            began = time.monotonic()
            seen = self.daemons[0].control_tool("jobs", "--all", "-j", job.name)
            self.assertLess(time.monotonic() - began, 5)
        finding, = seen["findings"]
        self.assertEqual(finding["machine"], f"{self.machines[1].address}:{MESH_PORT}")


@unittest.skipUnless(isolation_possible(), "on loopback no port is the usual one")
class SettingsOfMachines(ClusterCase):
    """Machine 1 says by name what machine 0 takes by default, machine 2 protects frames differently."""

    MACHINES, OWN_MESH = 3, True

    @classmethod
    def config_of(cls, machine):
        transport = ({}, {"name": "tcp"}, {"seal": "encrypt"})[machine]
        return {"mesh": {"network": ["10.77.0.0/24"]}, "transport": transport}

    def findings(self, here, there):
        """Of machines that have the usual port, so that none is given."""
        done = self.daemons[here].control_tool("doctor", self.machines[there].address, check=False)
        seen = json.loads(done.stdout)
        self.assertEqual([other["address"] for other in seen["others"]], [f"{self.machines[there].address}:7070"])
        self.assertEqual(done.returncode, 1 if seen.get("findings") else 0)
        return [(finding["machine"], finding["key"]) for finding in seen.get("findings", [])]

    def test_a_default_and_the_same_by_its_name_do_not_differ(self):
        self.assertEqual(self.findings(0, 1), [])
        self.assertEqual(self.findings(1, 0), [])

    def test_seals_that_differ_are_found_before_a_job_is_refused(self):
        self.assertEqual([key for _, key in self.findings(0, 2)], ["transport.seal"])
        self.assertEqual([key for _, key in self.findings(2, 1)], ["transport.seal"])


def _add_tests():
    def of_doctor(name):
        return lambda self: self.assert_doctor(self.attempts[name])

    def of_job(name):
        return lambda self: self.assert_job(self.attempts[name])

    for mistake in MISTAKES:
        word = mistake.name.replace(" ", "_").replace("'", "")
        setattr(TwelveMistakes, f"test_doctor_names_{word}", of_doctor(mistake.name))
        if mistake.job:
            setattr(TwelveMistakes, f"test_a_job_names_{word}", of_job(mistake.name))


_add_tests()

if __name__ == "__main__":
    unittest.main()

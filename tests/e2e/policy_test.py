"""Policies that cannot surprise: what a file does not say stays as configured, nothing exact becomes lossy unasked.

The coordinator's daemon is configured to send everything exactly, the other machine's to compress; files are applied at
the other one. Whether gradients travel exactly is seen in the results' bits.
"""

import os
import pty
import re
import select
import subprocess
import time
import unittest

import sums
from cluster_case import ClusterCase
from daemons import binary
from ranks import Tensor

EXACT, LOSSY = range(2)  # machines, by their configuration
TENSORS = (Tensor("layer.weight", (300, 411), op=sums.AVG), Tensor("layer.bias", (300,), op=sums.AVG),
           Tensor("flat", (70_000,), op=sums.AVG))
COMPRESS = "maxmin:4,bucket=512,stochastic"
REFUSED, KEPT = "refused", "kept"

FILES = {  # name: (text, what becomes of it, what is said)
    "nothing at all": ("", REFUSED, "says nothing"),
    "comments only": ("# codec: maxmin:4\n", REFUSED, "says nothing"),
    "an empty section": ("{}\n", REFUSED, "says nothing"),
    "rules without any": ("rules:\n", REFUSED, "says nothing"),
    "one key": ("window: 8\n", KEPT, ""),
    "one key as JSON": ('{"stats_steps": 7}', KEPT, ""),
    "a byte order mark": ("\ufeffgroup_bytes: 1 MiB\n", KEPT, ""),
    "no rules, said so": ("rules: []\n", KEPT, ""),
    "no smallest size": ("min_elements: 0\n", KEPT, ""),
    "vectors as everything": ("raw_one_dimensional: false\n", KEPT, ""),
    "a rule for nobody": ("rules: [{match: nowhere, codec: 'maxmin:4'}]\n", KEPT, ""),
    "a rule for small ones that does not say so": ("rules: [{match: bias, codec: 'maxmin:4'}]\n", KEPT, ""),
    "a codec without a value": ("codec:\n", REFUSED, "codec: has no value"),
    "a codec cut short": ("codec: maxmi", REFUSED, "codec"),
    "a codec": (f"codec: {COMPRESS}\n", REFUSED, "--lossy"),
    "a rule for all": ("rules: [{match: '.*', codec: 'maxmin:4'}]\n", REFUSED, "--lossy"),
    "a rule for small ones": ("rules: [{match: bias, codec: 'maxmin:4', small: true}]\n", REFUSED, "layer.bias"),
    "a rule cut short": ("rules:\n- match: weight\n  cod", REFUSED, "rules[0]"),
    "two codecs": (f"codec: fp32\ncodec: {COMPRESS}\n", REFUSED, "given twice"),
    "two documents": (f"window: 8\n---\ncodec: {COMPRESS}\n", REFUSED, "end of the YAML document"),
    "a daemon's file": (f"policy:\n  codec: {COMPRESS}\n", REFUSED, "no such key"),
    "noise": ("\x00\x01\xfe{{{", REFUSED, ""),
}


class Policies(ClusterCase):
    @classmethod
    def config_of(cls, machine):
        return {"policy": {"codec": "fp32" if machine == EXACT else COMPRESS, "stats_steps": 0}}

    def setUp(self):
        self.await_no_job()

    def start(self, places=(EXACT, LOSSY), name=None):
        job = self.job(list(places), name=name)
        self.comm, self.step = job.join(tensors=TENSORS), 0
        return job

    def policy(self, verb, job, *arguments, at=LOSSY, by_name=False, check=True):
        """With the target's names where they are not to be: a job whose name is not given is the only one."""
        target = ["--job", job.name] if by_name else []
        return self.daemons[at].control_tool("policy", verb, *target, *arguments, check=check)

    def apply_file(self, job, text, *more):
        path = os.path.join(self.directory, "policy.yaml")
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        return self.policy("apply", job, path, *more, check=False)

    def steps(self, job, count=4):
        """More than an agreed plan takes to be in force. True: the last results were exact."""
        for _ in range(count):
            self.step += 1
            job.submit(self.comm, self.step)
            job.must("wait", self.comm, self.step)
        right = [job.result(self.comm, 0, index).tobytes() == job.expected(self.step, index).tobytes()
                 for index in range(len(TENSORS))]
        for index in range(len(TENSORS)):
            self.assertEqual(job.result(self.comm, 0, index).tobytes(), job.result(self.comm, 1, index).tobytes())
        return all(right)

    def end(self, job):
        job.close()
        self.await_no_job()

    def test_no_file_makes_an_exact_fleet_lossy_unasked(self):
        job = self.start()
        self.assertTrue(self.steps(job))
        whole = self.policy("get", job)["policy"]
        self.assertEqual(whole["codec"], "fp32", "the coordinator's counts")
        for name, (text, outcome, said) in FILES.items():
            with self.subTest(name):
                done = self.apply_file(job, text)
                self.assertEqual(done.returncode, 1 if outcome == REFUSED else 0, done.stdout + done.stderr)
                self.assertIn(said, done.stderr)
                self.assertTrue(self.steps(job), "it travels compressed now")

    def test_no_part_of_a_printed_policy_does(self):
        job = self.start()
        self.apply_file(job, "rules: [{match: weight, codec: fp32}, {match: nowhere, codec: 'maxmin:4'}]\n")
        self.assertTrue(self.steps(job))
        text = self.machines[LOSSY].run([binary("cgxctl"), "--socket", self.daemons[LOSSY].control, "policy", "get"],
                                        capture_output=True, text=True, check=True).stdout
        for end in range(0, len(text), 17):
            done = self.apply_file(job, text[:end])
            self.assertIn(done.returncode, (0, 1), done.stderr)
            if end % 51 == 0:
                self.assertTrue(self.steps(job, 3), text[:end])
        self.assertTrue(self.steps(job))

    def test_loss_is_named_allowed_and_taken_back(self):
        job = self.start()
        self.assertTrue(self.steps(job))
        checked = self.policy("check", job, "--set", f"codec={COMPRESS}")["effect"]
        self.assertEqual(checked["lossy_names"], ["layer.weight", "flat"], "a large vector is no bias")
        uses = {use["codec"]: use for use in checked["codecs"]}
        raw = 4 * sum(int(sums.np.prod(tensor.shape)) for tensor in TENSORS)
        self.assertEqual((uses["fp32"]["tensors_now"], uses["fp32"]["bytes_now"]), (3, raw))
        self.assertEqual((uses["fp32"]["tensors_after"], uses["fp32"]["bytes_after"]), (1, 1200))
        self.assertLess(uses[COMPRESS]["bytes_after"] * 7, raw)
        self.policy("apply", job, "--set", f"codec={COMPRESS}", "--lossy", "--reason", "to see")
        self.assertFalse(self.steps(job))
        for daemon in self.daemons:
            self.wait_until(lambda d=daemon: re.search('policy is in force .*version=2 .*reason="to see"', d.log()),
                            "its line in the log")
            versions = daemon.control_tool("policy", "history")["versions"]
            self.assertEqual([v["policy"]["codec"] for v in versions], ["fp32", COMPRESS])
            self.assertEqual(versions[1]["reason"], "to see")
            self.assertIn("uid ", versions[1]["by"])
        self.policy("rollback", job)
        self.assertTrue(self.steps(job))
        refused = self.policy("rollback", job, "2", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("--lossy", refused.stderr)
        self.assertTrue(self.steps(job))

    def test_a_rule_that_matches_nothing_is_named(self):
        job = self.start()
        idle = self.policy("check", job, "--set", "rules=[{match: a, codec: fp32}, {match: nowhere, codec: fp32}, "
                                                  "{match: layer, codec: fp32}, {match: bias, codec: 'maxmin:4'}]")
        self.assertEqual([text.split(" (")[0] for text in idle["effect"]["idle_rules"]], ["rule 2", "rule 3", "rule 4"])
        self.assertIn("matches no tensor", idle["effect"]["idle_rules"][0])
        self.assertIn("small: true", idle["effect"]["idle_rules"][2])

    def test_what_a_file_does_not_say_stays_as_configured_not_as_running(self):
        job = self.start()
        self.steps(job)
        self.policy("apply", job, "--set", "window=9")
        self.steps(job)
        self.assertEqual(self.apply_file(job, "weight: 3\n").returncode, 0)
        self.steps(job)
        running = self.policy("get", job, at=EXACT)["policy"]
        self.assertEqual((running["window"], running["weight"], running["codec"]), (4, 3, "fp32"))

    def test_a_change_by_the_jobs_name_survives_its_restart(self):
        job = self.start(name="named")
        self.steps(job)
        self.policy("apply", job, "--set", "window=7", by_name=True)
        self.steps(job)
        self.policy("apply", job, "--set", "window=9")  # not by name
        self.steps(job)
        for places in ((EXACT, LOSSY), (LOSSY, EXACT)):  # whoever coordinates
            self.end(job)
            job = self.start(places, name="named")
            for at in (EXACT, LOSSY):
                history = self.policy("history", job, at=at)["versions"]
                self.assertEqual([(v["version"], v["policy"]["window"]) for v in history], [(1, 4), (2, 7)])
            self.steps(job)
        self.policy("rollback", job, "1", "--lossy", by_name=True)  # this one's coordinator compresses
        self.steps(job)
        self.end(job)
        job = self.start((LOSSY, EXACT), name="named")
        self.assertEqual([v["version"] for v in self.policy("history", job)["versions"]], [1])

    def test_at_a_terminal_the_person_there_is_asked(self):
        job = self.start()
        self.assertTrue(self.steps(job))
        for answer, changed in (("n", False), ("y", True)):
            ours, theirs = pty.openpty()
            command = [binary("cgxctl"), "--socket", self.daemons[LOSSY].control, "policy", "apply", "--wait", "0",
                       "--set", f"codec={COMPRESS}"]
            asking = self.machines[LOSSY].start(command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs)
            os.close(theirs)
            self.assertIn("2 tensors", self.read_until(ours, "do it? [y/N]"))
            os.write(ours, answer.encode() + b"\n")
            self.assertEqual(asking.wait(20), 0 if changed else 1)
            os.close(ours)
            self.assertEqual(self.steps(job), not changed)

    def read_until(self, terminal, end, timeout_s=20):
        text, deadline = "", time.monotonic() + timeout_s
        while end not in text:
            self.assertTrue(select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], text)
            text += os.read(terminal, 4096).decode()
        return text


if __name__ == "__main__":
    unittest.main()

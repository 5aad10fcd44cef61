"""Mode auto over real daemons: on a slow link gradients come to be compressed, and everybody has the same bits throughout.

The periods here are those of a test that fills, dumps and compares; the link is slow enough to be most of a step.
"""

import json
import os
import subprocess
import unittest

from cluster_case import ClusterCase, stop
from daemons import binary
from machines import isolation_possible
from ranks import Tensor

TENSORS = tuple(Tensor(f"layer{i}.weight", (256, 1024)) for i in range(4)) + (Tensor("bias", (64,)),)
POLICY = {"mode": "auto", "group_bytes": "2 MiB", "stats_steps": 0, "replica_check_steps": 0}


@unittest.skipUnless(isolation_possible(), "no network namespaces to give a link a rate in")
class Search(ClusterCase):
    CONFIG = {"policy": POLICY}

    def notes(self):
        communicators = self.daemons[0].control_tool("jobs")["communicators"]
        self.assertEqual(len(communicators), 1)
        return communicators[0]

    def play(self, job, comm, step):
        job.must("submit", comm, step, *range(len(TENSORS)))
        job.must("end", comm, step)
        job.must("wait", comm, step)

    def same_everywhere(self, job, comm):
        for index in range(len(TENSORS)):
            results = [job.result(comm, rank, index).tobytes() for rank in range(len(job.ranks))]
            self.assertEqual(len(set(results)), 1, f"ranks differ in tensor {index}")

    def test_a_slow_link_comes_to_carry_four_bits(self):
        self.machines.shape("100mbit")
        job = self.job([0, 1, 1])
        comm = job.join(tensors=TENSORS)
        self.assertEqual(self.codecs(), {"fp32"}, "it begins exact")
        job.step(comm, 1)
        for step in range(2, 301):
            job.fill(comm, step)
            self.play(job, comm, step)
            self.same_everywhere(job, comm)
            if self.notes().get("searching") == "settled":
                break
        shown = self.notes()
        self.assertEqual((shown["mode"], shown["searching"]), ("auto", "settled"))
        kept = [note for note in shown["plan_notes"] if note["verdict"] == "kept"]
        self.assertTrue(kept, shown["plan_notes"])
        self.assertLess(kept[0]["measured"], 0.7)
        self.assertIn("maxmin:4,bucket=512,stochastic", self.codecs())
        self.assertEqual(self.codec_of("bias"), "fp32")
        history = self.said(0, "plan", "history")
        for text in ("mode auto", "the search is settled", "kept", "choose"):
            self.assertIn(text, history)
        self.assertIn("machine 0 of the communicator searches", self.said(1, "plan", "history"))
        self.assertIn("COLLECTIVE", self.said(1, "plan", "show"))
        self.assertIn("a plan was looked at", self.daemons[0].log())
        self.asks_what_it_costs(job, comm, step + 1)
        job.close()

    def searched(self, name):
        """A job of that name is played until its search has settled; what its tensors travel as at first and in the end."""
        job = self.job([0, 1], name=name)
        comm = job.join(tensors=TENSORS)
        first = self.codecs()
        for step in range(1, 301):
            job.fill(comm, step)
            self.play(job, comm, step)
            if self.notes().get("searching") == "settled":
                break
        self.play(job, comm, step + 1)  # the first one of a settled search: its plan is kept
        last = self.codecs()
        job.close()
        return first, last

    def start_again(self):
        for daemon in self.daemons:
            self.assertEqual(stop(daemon), 0, daemon.log())
            daemon.start()

    def test_a_plan_that_was_found_outlives_the_daemon(self):
        begins, damaged = "communicator begins with the plan kept for its name", "its checksum differs"
        kept_plans = os.path.join(self.daemons[0].directory, "kept_plans")
        self.machines.shape("100mbit")
        first, found = self.searched("outlives")
        self.assertEqual(first, {"fp32"})
        self.wait_until(lambda: os.path.exists(kept_plans), "a file with the plan")
        self.start_again()
        self.assertEqual(self.searched("outlives")[0], found)
        self.assertEqual(self.daemons[0].log().count(begins), 1)
        with open(kept_plans, "r+b") as file:
            file.seek(40)
            file.write(b"~")
        self.start_again()
        self.assertEqual(self.daemons[0].log().count(damaged), 1)
        self.assertEqual(self.searched("outlives")[0], {"fp32"})
        self.assertEqual(self.daemons[0].log().count(begins), 1)

    def asks_what_it_costs(self, job, comm, step):
        """Steps go on meanwhile: some are measured for it."""
        asked = [self.daemons[0].machine.start([binary("cgxctl"), "--socket", self.daemons[0].control, *words], text=True,
                                               stdout=subprocess.PIPE)
                 for words in (("plan", "explain", "layer0.weight"),
                               ("plan", "simulate", "--set", "codec=maxmin:8", "--machines", "16"),
                               ("plan", "profile"), ("plan", "profile", "--model"))]
        while any(process.poll() is None for process in asked):
            self.play(job, comm, step)
            step += 1
        explained, simulated, profiled, model = (process.communicate()[0] for process in asked)
        for text in ("because: ", "chosen: maxmin:4", "next best: ", "a step takes "):
            self.assertIn(text, explained)
        for text in ("maxmin:8", "now, measured", "on 16 machines"):
            self.assertIn(text, simulated)
        for text in ("a step takes ", "the daemon works ", " explains what steps took", "beside codecs an operation takes ",
                     "maxmin:4", "layer0.weight", "by the slowest of 2 machines that were heard\n"):
            self.assertIn(text, profiled)
        self.assertIn("ask there", self.said(1, "plan", "explain", "layer0.weight"))
        self.plays_on_paper(model)

    def plays_on_paper(self, model):
        """What cgxctl prints of the job is a model for cgxsim."""
        path = os.path.join(self.daemons[0].directory, "model")
        with open(path, "w", encoding="utf-8") as file:
            file.write(model)
        done = subprocess.run([binary("cgxsim"), "-m", path, "-n", "2", "-p", "codec: fp32", "-p", "codec: maxmin:4",
                               "--json"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr + model)
        exact, lossy = json.loads(done.stdout)["runs"]
        self.assertGreater(exact["sent_bytes"], 3 * lossy["sent_bytes"])
        printed = subprocess.run([binary("cgxsim"), "-m", path], capture_output=True, text=True, check=True).stdout
        self.assertIn("1,048,640 parameters in 5 tensors", printed)
        self.assertRegex(model, r"(?m)^tensor layer0[.]weight 256x1024 [\d.]+us$")
        self.assertRegex(model, r"(?m)^forward (?!0[.]000us)[\d.]+us$")

    def said(self, machine, *words):
        daemon = self.daemons[machine]
        return daemon.machine.run([binary("cgxctl"), "--socket", daemon.control, *words], capture_output=True, text=True,
                                  check=True).stdout

    def codecs(self):
        return {tensor["codec"] for tensor in self.tensors()}

    def codec_of(self, name):
        return next(tensor["codec"] for tensor in self.tensors() if tensor["name"] == name)

    def tensors(self):
        return self.daemons[0].control_tool("tensors")["tensors"]


if __name__ == "__main__":
    unittest.main()

"""Ceilings over real daemons: bits by layer come from what is measured while a job runs, everybody has the same bits of the results, and
cgxctl says what was found and refuses what makes no sense before anything runs."""

import unittest

from cluster_case import ClusterCase
from daemons import binary
from ranks import Tensor

TENSORS = tuple(Tensor(f"layer{i}.weight", (64, 256)) for i in range(4)) + (Tensor("pinned", (64, 256)), Tensor("bias", (64,)))
# Any error is small enough: the fewest bits there are.
POLICY = {"codec": "maxmin:4,stochastic", "ceilings": "layerwise", "layerwise_alpha": "100000", "stats_steps": 4,
          "replica_check_steps": 3, "rules": [{"match": "pinned", "codec": "maxmin:8"}]}
STEPS_MAX = 300  # by when everybody has agreed on them, however fast the steps are
WRONG = {
    ("layerwise_alpha=0",): "above 0",
    ("layerwise_alpha=-1",): "above 0",
    ("layerwise_alpha=much",): "above 0",
    ("layerwise_solver=guess",): "kmeans",
    ("ceilings=sky",): "layerwise",
    ("codec=fp16",): "has none; give one with bits",
}


class Ceilings(ClusterCase):
    CONFIG = {"policy": POLICY}

    def test_layers_take_the_bits_that_their_errors_allow(self):
        job = self.job([0, 1, 1])
        comm = job.join(tensors=TENSORS)
        self.assertEqual(self.codecs()["layer0.weight"], "maxmin:4,bucket=512,stochastic")
        layers, fewest, last = [f"layer{i}.weight" for i in range(4)], {"maxmin:2,bucket=512,stochastic"}, STEPS_MAX
        for step in range(1, STEPS_MAX + 1):
            self.play(job, comm, step)
            for index in range(len(TENSORS)):
                results = {job.result(comm, rank, index).tobytes() for rank in range(len(job.ranks))}
                self.assertEqual(len(results), 1, f"ranks differ in tensor {index}, step {step}")
            if step == last:
                break
            if last == STEPS_MAX and {self.codecs()[layer] for layer in layers} == fewest:
                last = step + 2  # with the new codecs
        codecs = self.codecs()
        self.assertEqual({codecs[layer] for layer in layers}, fewest)
        self.assertEqual(codecs["pinned"], "maxmin:8,bucket=512", "a rule goes before a ceiling")
        self.assertEqual(codecs["bias"], "fp32")
        self.assertIn("ceilings: layerwise", self.said("tensors"))
        explained = self.said("plan", "explain", "layer0.weight")
        for part in ("layer0.weight: maxmin:2", "because: ceilings: layerwise", "times fewer bytes", "mode fixed"):
            self.assertIn(part, explained)
        self.assertIn("because: rule 1: pinned", self.said("plan", "explain", "pinned"))
        history = self.said("plan", "history")
        self.assertIn("times fewer bytes than maxmin:4", history)
        self.assertIn("in force", history)
        self.assertIn("a plan was looked at", self.daemons[0].log())
        job.close()

    def test_what_makes_no_sense_is_refused_by_name(self):
        job = self.job([0, 1])
        job.join(tensors=TENSORS)
        for settings, reason in WRONG.items():
            words = [word for setting in settings for word in ("--set", setting)]
            asked = self.control("policy", "apply", "--wait", "0", *words)
            self.assertNotEqual(asked.returncode, 0, settings)
            self.assertIn(reason, asked.stderr + asked.stdout, settings)
        job.close()

    def test_a_pin_goes_before_everything_until_it_is_taken_out(self):
        job = self.job([0, 1])
        comm = job.join(tensors=TENSORS)
        steps = iter(range(1, 1000))

        def plan(*words):
            asked = self.control("plan", *words, "--wait", "0", "--lossy")
            for _ in range(3):
                self.play(job, comm, next(steps))
            return asked.returncode, asked.stdout + asked.stderr
        self.assertEqual(plan("pin", "layer1.weight", "fp32")[0], 0)
        self.assertEqual(self.codecs()["layer1.weight"], "fp32")
        self.assertEqual(self.codecs()["layer0.weight"], "maxmin:4,bucket=512,stochastic")
        code, said = plan("pin", "pinned", "fp32")
        self.assertEqual(code, 1)
        for part in ("the pin of pinned to fp32", "rule 2: pinned", "maxmin:8"):
            self.assertIn(part, said)
        self.assertEqual(plan("pin", "pinned", "fp32", "--over-rules")[0], 0)
        self.assertEqual(self.codecs()["pinned"], "fp32")
        self.assertEqual(plan("pin", "bias", "maxmin:8")[0], 0, "small ones, too")
        self.assertEqual(self.codecs()["bias"], "maxmin:8,bucket=512")
        self.assertEqual(plan("pin", "layer1.weight", "maxmin:8")[0], 0, "a pin takes the place of another")
        self.assertEqual(self.codecs()["layer1.weight"], "maxmin:8,bucket=512")
        for name in ("pinned", "bias", "layer1.weight"):
            self.assertEqual(plan("unpin", name)[0], 0)
        self.assertEqual(self.codecs()["pinned"], "maxmin:8,bucket=512", "the rule's")
        self.assertEqual(self.codecs()["bias"], "fp32")
        self.assertIn("is not pinned", plan("unpin", "bias")[1])
        self.assertIn("no tensor nowhere among the 6", plan("pin", "nowhere", "fp32")[1])
        self.assertIn("codec", plan("pin", "bias", "nonsense")[1])
        self.assertIn("pin bias to maxmin:8", self.said("policy", "history"))
        job.close()

    def play(self, job, comm, step):
        job.fill(comm, step)
        job.must("submit", comm, step, *range(len(TENSORS)))
        job.must("end", comm, step)
        job.must("wait", comm, step)

    def control(self, *words):
        daemon = self.daemons[0]
        return daemon.machine.run([binary("cgxctl"), "--socket", daemon.control, *words], capture_output=True, text=True)

    def said(self, *words):
        done = self.control(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def codecs(self):
        return {tensor["name"]: tensor["codec"] for tensor in self.daemons[0].control_tool("tensors")["tensors"]}


if __name__ == "__main__":
    unittest.main()

"""An operator changes a job's policy again and again, under load: every change comes when it was promised, everywhere.

CGX_CHANGES sets how often (default 40); `.ci/run long` asks for 1,000, which takes some minutes.
"""

import json
import os
import random
import threading
import unittest

import sums
from cluster_case import ClusterCase
from ranks import Tensor

CHANGES = int(os.environ.get("CGX_CHANGES", "40"))
SEED = int(os.environ.get("CGX_CHANGES_SEED", "1"))
TENSORS = (Tensor("layer.weight", (300, 411), op=sums.AVG), Tensor("layer.bias", (300,)), Tensor("half", (64, 65), "fp16"))
PLACES = [0, 1, 1]
LOSSY = ("maxmin:4,feedback", "maxmin:8,stochastic", "efsign,feedback", "topk:0.1,feedback")


class Training(threading.Thread):
    """A job's steps, one after the other, each judged; stops by itself when one is wrong."""

    def __init__(self, job, comm):
        super().__init__()
        self.job, self.comm = job, comm
        self.stopped = threading.Event()
        self.governed = {}  # step: (epoch, policy version)
        self.problem = None

    def run(self):
        try:
            while not self.stopped.is_set():
                self.step(len(self.governed) + 1)
        except Exception as error:  # pylint: disable=broad-except  the test raises it
            self.problem = error

    def step(self, step):
        self.job.submit(self.comm, step)
        self.job.must("wait", self.comm, step)
        told = {(a.more["epoch"], a.more["policy_version"]) for a in self.job.must("info", self.comm, step)}
        assert len(told) == 1, f"step {step}: ranks ran under {told}"
        for index, tensor in enumerate(self.job.tensors):
            results = {self.job.result(self.comm, rank, index).tobytes() for rank in range(len(self.job.places))}
            assert len(results) == 1, f"step {step}, {tensor.name}: ranks have {len(results)} results"
            exact = index == 1  # a small one: fp32 whatever the policy
            right = self.job.expected(step, index).tobytes()
            assert not exact or results == {right}, f"step {step}, {tensor.name}: not exact"
        self.governed[step] = told.pop()

    def end(self):
        self.stopped.set()
        self.join()


def some_policy(draw):
    return {"window": draw.randint(1, 8), "group_bytes": draw.choice(("4 KiB", "64 KiB", "4 MiB")),
            "segment_bytes": draw.choice(("0", "128 KiB")), "collective": draw.choice(("auto", "scatter", "allgather")),
            "codec": draw.choice(("fp32", *LOSSY))}


class ChangesUnderLoad(ClusterCase):
    CONFIG = {"policy": {"codec": "fp32", "replica_check_steps": 1, "stats_steps": 7}}

    def train(self, places, **options):
        job = self.job(places, **options)
        training = Training(job, job.join(tensors=TENSORS))
        training.start()
        self.addCleanup(training.end)
        return training

    def apply(self, daemon, policy):
        path = os.path.join(self.directory, "policy.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(policy, file)  # JSON is YAML
        return daemon.control_tool("policy", "apply", "-j", "changed", "--lossy", path)

    def await_force(self, training, promise):
        self.wait_until(lambda: promise[2] in training.governed or training.problem, "the change", 30)

    def test_every_change_comes_at_one_step_for_all(self):
        draw = random.Random(SEED)
        beside = self.train([1, 0], name="beside")
        training = self.train(PLACES, name="changed")
        promised = []
        for number in range(CHANGES):
            change = self.apply(self.daemons[draw.randrange(2)], some_policy(draw))
            self.assertTrue(training.is_alive() and beside.is_alive(), f"change {number}: {training.problem or beside.problem}")
            promised.append((int(change["policy_version"]), int(change["epoch"]), int(change["switch_step"])))
            if draw.random() < 0.5:  # else the next one is announced before this one is in force
                self.await_force(training, promised[-1])
        self.await_force(training, promised[-1])
        for each in (training, beside):
            each.end()
            self.assertIsNone(each.problem)
        self.assertEqual([version for version, *_ in promised], list(range(2, CHANGES + 2)))
        for version, epoch, step in promised:
            self.assertEqual(training.governed[step], (epoch, version), f"step {step}")
            self.assertLess(training.governed[step - 1][1], version, f"step {step - 1}")
        self.assertEqual({version for _, version in beside.governed.values()}, {1}, "another job's policy changed")
        print(f"figure: {CHANGES} changes during {len(training.governed)} steps, {len(beside.governed)} beside", flush=True)


if __name__ == "__main__":
    unittest.main()

"""Ceilings of tensors that a worker reduces: what is measured on a GPU leads to the codecs that it leads to on the host.

The oracle is a job of host ranks with the same gradients.
"""

import os
import tempfile
import unittest

from worker_test import DAWDLING, WorkerCase

# Of the driver: what allocates, and what waits for the device.
COSTLY = ("cuMemAlloc", "cuMemHostAlloc", "cuMemCreate", "cuStreamCreate", "cuModuleLoadData", "cuCtxSynchronize",
          "cuStreamSynchronize", "cuEventSynchronize", "cuMemcpyDtoH", "cuMemcpyHtoD")
LAYERWISE = {"codec": "maxmin:4", "ceilings": "layerwise", "stats_steps": 4, "replica_check_steps": 0}


class CeilingCase(WorkerCase):
    def found(self, kind, steps=36):
        """By tensor, the codec after so many steps, in the midst of those under one plan; and what was said of ceilings first."""
        ranks = self.begin([kind] * 2, f"layers={steps}")
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "stepped\n")
        codecs = {each["name"]: each["codec"] for each in self.daemons[0].control_tool("tensors")["tensors"]}
        shown = self.daemons[0].control_tool("plan", "history")["communicators"]
        for rank in ranks:
            self.assertEqual(rank.communicate("\n", timeout=30)[1], "")
        self.assertEqual((len(codecs), len(shown)), (6, 1))
        said = [note["plan"] for note in shown[0]["plan_notes"] if "fewer bytes than" in note["plan"]]
        return codecs, said[:1]


class Layerwise(CeilingCase):
    CONFIG = {"policy": LAYERWISE}

    def test_layers_on_a_gpu_get_the_bits_that_they_get_on_the_host(self):
        host = self.found("host")
        self.assertGreater(len(set(host[0].values())), 2, host)
        for kind in ("arena", "copied"):
            self.assertEqual(self.found(kind), host, kind)


class LayerwiseAuto(CeilingCase):
    """Whoever looks for short steps chooses at or below them, by time: what was found before is compared."""

    CONFIG = {"policy": dict(LAYERWISE, mode="auto")}

    def test_ceilings_of_layers_on_a_gpu_are_those_on_the_host(self):
        said = self.found("host")[1]
        self.assertRegex(said[0], r"^layerwise: \d\.\d\d times fewer bytes than maxmin:4,bucket=512 for all, 0\.\d\d of its squared error")
        self.assertEqual(self.found("arena")[1], said)


class Gravac(CeilingCase):
    """No share keeps as much as is wanted. Without losses every share would seem to keep everything."""

    CONFIG = {"policy": {"codec": "topk:0.01,feedback", "ceilings": "gravac", "gravac_min": "10", "gravac_max": "100",
                         "gravac_epsilon": "0.999", "stats_steps": 2, "replica_check_steps": 0}}

    def test_layers_that_no_share_is_enough_for_travel_as_they_are(self):
        host = self.found("host")[0]
        self.assertEqual(set(host.values()), {"fp32,bucket=4096"})
        self.assertEqual(self.found("arena")[0], host)


class Steady(CeilingCase):
    CONFIG = {"policy": LAYERWISE}

    @classmethod
    def setUpClass(cls):
        cls.counts = tempfile.TemporaryDirectory(prefix="cgx-counts-")
        cls.addClassCleanup(cls.counts.cleanup)
        cls.WORKER = f"{DAWDLING} counts={cls.counts.name}"
        super().setUpClass()

    def counted(self, steps):
        """By function, how often a worker called it."""
        self.found("arena", steps)
        self.no_workers_left()
        counts = {}
        for name in os.listdir(self.counts.name):
            with open(os.path.join(self.counts.name, name)) as file:
                if name.startswith("cgxd-gpu."):
                    counts = {words[0]: int(words[1]) for words in map(str.split, file)}
            os.remove(os.path.join(self.counts.name, name))
        return counts

    def test_a_worker_neither_allocates_nor_waits_to_measure(self):
        never, measured = self.counted(3), self.counted(40)
        self.assertGreater(measured["cuLaunchKernel"], 100)
        for name in COSTLY:
            self.assertEqual(measured.get(name, 0), never.get(name, 0), name)


if __name__ == "__main__":
    unittest.main()

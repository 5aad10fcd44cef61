"""Several GPUs of a machine for one job: each is a site, a machine to the collective, with a worker of its own.

The oracle is the host: as many machines as there are GPUs, with the same ranks.
"""

import unittest

from gpu_driver import of_the_standin
from worker_test import WorkerCase


class Several(WorkerCase):
    MACHINES = 4
    CONFIG = {"policy": {"codec": "maxmin:4,bucket=128", "collective": "allgather"}}

    def hosts(self, places, *parts):
        return self.run_ranks(["host"] * len(places), *parts, places=places)

    def gpus(self, places, gpus, *parts):
        return self.run_ranks(["arena"] * len(places), *parts, places=places, gpus=gpus)

    def test_four_gpus_of_one_machine_get_the_bits_of_four_machines(self):
        host = self.hosts([0, 1, 2, 3])
        self.assertNotIn("failed", host[0])
        before = self.daemons[0].counters()
        self.assertEqual(self.gpus([0] * 4, [0, 1, 2, 3]), host)
        after = self.daemons[0].counters()
        self.assertEqual(after["encoded_bytes_sent"], before["encoded_bytes_sent"], "no network carries them")
        self.assertGreater(after["site_bytes"], before["site_bytes"])

    def test_ranks_of_one_gpu_are_one_site(self):
        self.assertEqual(self.gpus([0] * 4, [0, 1, 0, 1], "steps"), self.hosts([0, 1, 0, 1], "steps"))

    def test_two_machines_with_two_gpus_each(self):
        self.assertEqual(self.gpus([0, 0, 1, 1], [0, 1, 0, 1]), self.hosts([0, 1, 2, 3]))

    def test_no_worker_stays_behind_a_job_on_several(self):
        self.gpus([0] * 4, [0, 1, 2, 3], "steps")
        self.no_workers_left()


class SeveralWithFeedback(Several):
    CONFIG = {"policy": {"codec": "maxmin:4,bucket=128,feedback", "collective": "scatter"}}


class SeveralSparse(Several):
    CONFIG = {"policy": {"codec": "topk:0.02,feedback", "collective": "allgather"}}


class SeveralReduceSparse(Several):
    """Contributions are added and what comes of it is encoded again, as long as it may be."""

    CONFIG = {"policy": {"codec": "threshold:1.8,feedback", "collective": "scatter"}}


class SeveralDrawn(Several):
    JOB = "drawn"
    CONFIG = {"policy": {"codec": "randomk:0.1", "collective": "two_level", "rack_machines": 2}}


class SeveralInTwoLevels(Several):
    """Pairs of GPUs add what they have before anything goes further."""

    CONFIG = {"policy": {"codec": "maxmin:4,bucket=128,feedback", "collective": "two_level", "rack_machines": 2}}


class SeveralWithACodecOfRacks(Several):
    """What the pairs add travels uncompressed between them, and errors stay where they are made."""

    CONFIG = {"policy": {"codec": "maxmin:4,bucket=128,feedback", "collective": "two_level", "rack_machines": 2,
                         "rack_codec": "fp32"}}


class SeveralWithAWeakCodecOfRacks(Several):
    """So it does in 8 bits, which are decoded before they are added."""

    CONFIG = {"policy": {"codec": "maxmin:3,bucket=128,feedback", "collective": "two_level", "rack_machines": 2,
                         "rack_codec": "maxmin:8,bucket=192"}}


class SeveralWithADrawnCodecOfRacks(Several):
    """Random draws are named by the buckets of the codec that draws, here halves of the tensor's."""

    JOB = "drawn"
    CONFIG = {"policy": {"codec": "maxmin:3,bucket=128,stochastic", "collective": "two_level", "rack_machines": 2,
                         "rack_codec": "maxmin:6,bucket=192,stochastic"}}


class RacksOfThree(WorkerCase):
    """Each GPU decodes what two others have sent it, and adds both in their places."""

    MACHINES = 6
    CONFIG = {"policy": {"codec": "maxmin:3,bucket=128", "collective": "two_level", "rack_machines": 3,
                         "rack_codec": "maxmin:8,bucket=64"}}

    def test_two_machines_with_three_gpus_each(self):
        host = self.run_ranks(["host"] * 6, "steps", places=[0, 1, 2, 3, 4, 5])
        self.assertNotIn("failed", host[0])
        self.assertEqual(self.run_ranks(["arena"] * 6, "steps", places=[0, 0, 0, 1, 1, 1], gpus=[0, 1, 2, 0, 1, 2]), host)


class RacksOfTheirOwn(WorkerCase):
    """Nobody says what is near what: the GPUs of each machine are."""

    CONFIG = {"policy": {"codec": "maxmin:4,bucket=128", "collective": "two_level"}}

    def sent(self, daemons, places, gpus):
        before = [self.daemons[at].counters() for at in daemons]
        self.run_ranks(["arena"] * len(places), f"sized={1 << 18}", places=places, gpus=gpus)
        after = [self.daemons[at].counters() for at in daemons]
        return [sum(now[name] - then[name] for now, then in zip(after, before)) for name in ("encoded_bytes_sent", "site_bytes")]

    def test_a_network_carries_what_one_gpu_a_machine_would_send(self):
        elements, steps, bucket = 1 << 18, 3, 128
        single = 2 * steps * (elements // 2 + 8 * elements // bucket)  # a machine's sum of one half, the result of the other
        far, near = self.sent([0, 1], [0, 0, 1, 1], [0, 1, 0, 1])
        self.assertAlmostEqual(far / single, 1, delta=0.05)
        self.assertGreater(near, single)

    def test_gpus_of_one_machine_alone_go_as_ever(self):
        far, near = self.sent([0], [0, 0], [0, 1])
        self.assertEqual(far, 0)
        self.assertGreater(near, 0)


class RacksOfTheirOwnUncompressed(RacksOfTheirOwn):
    """The network carries no more, though the GPUs of a machine add without loss."""

    CONFIG = {"policy": RacksOfTheirOwn.CONFIG["policy"] | {"rack_codec": "fp32"}}

    def test_gpus_of_a_machine_send_each_other_what_they_add_uncompressed(self):
        elements, steps, bucket = 1 << 18, 3, 128
        near = self.sent([0, 1], [0, 0, 1, 1], [0, 1, 0, 1])[1]
        half = elements // 4 + 4 * elements // bucket  # of 4 bits
        self.assertAlmostEqual(near / (4 * steps * (4 * elements // 2 + half)), 1, delta=0.05)


class RacksByAuto(RacksOfTheirOwn):
    """Nor says anybody that they go in two levels: fewer bytes between the machines do."""

    CONFIG = {"policy": {"codec": "maxmin:4,bucket=128", "collective": "auto"}}


class Raw(Several):
    """Without loss in between, GPUs of a machine give the sum that its host gives."""

    CONFIG = {"policy": {"codec": "fp32"}}

    def test_gpus_of_one_machine_get_the_sum_of_its_host(self):
        self.assertEqual(self.gpus([0] * 4, [0, 1, 2, 3], "steps"), self.hosts([0] * 4, "steps"))

    def test_two_machines_with_two_gpus_each(self):
        """In racks by themselves, so machines add their own GPUs first, as hosts do with their ranks."""
        self.assertEqual(self.gpus([0, 0, 1, 1], [0, 1, 0, 1], "steps"), self.hosts([0, 0, 1, 1], "steps"))


@of_the_standin
class SeveralSlowToOpen(WorkerCase):
    """GPUs that nothing has initialised yet: ranks wait up to 30 s for their worker, each for its own GPU only."""

    MACHINES = 1
    WORKER = "slow=cuInit:11000"

    def test_workers_of_several_gpus_open_them_at_the_same_time(self):
        said = self.run_ranks(["arena"] * 3, "small=1", places=[0] * 3, gpus=[0, 1, 2])
        self.assertEqual(said, [""] * 3)


class FaultsOfSeveral(WorkerCase):
    def test_a_killed_worker_ends_the_job_on_all_gpus(self):
        doomed = self.begin(["arena"] * 3, "paced", places=[0, 0, 1], gpus=[0, 1, 0])
        for _ in range(20):
            doomed[0].stdout.readline()
        seconds, said = self.kill_a_worker(doomed)
        for text in said:
            self.assertRegex(text, r"^failed (DEVICE_LOST|PEER_LOST) .*cgxd-gpu \(process \d+, GPU ")
        self.assertLess(seconds, 2.5)  # on a busy machine; a silent peer is known after 4 s
        self.no_workers_left()

    def test_a_rank_on_the_host_beside_ranks_on_gpus_is_refused_by_name(self):
        processes = self.begin(["arena", "arena", "host"], "steps", places=[0, 0, 0], gpus=[0, 1, 2])
        for process in processes:
            self.assertRegex(process.communicate(timeout=30)[1],
                             r"MismatchError.*rank \d of communicator .* has its tensors on (a GPU|the host), another rank of "
                             r"this machine on (a GPU|the host)")


if __name__ == "__main__":
    unittest.main()

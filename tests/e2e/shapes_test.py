"""Jobs of every shape get the reference's bits: machines, ranks, tensors, types, communicators, users."""

import os
import unittest

import numpy as np

import sums
from cluster_case import ClusterCase
from daemons import binary
from ranks import Job, Tensor

ODD_TENSORS = (Tensor("empty", (0,)), Tensor("scalar", (), op=sums.AVG), Tensor("tiny", (3,)),
               Tensor("prime", (10007,), op=sums.AVG), Tensor("one_more_than_a_shard", (2, 2049)),
               Tensor("row", (1, 70001), op=sums.AVG))
TYPED_TENSORS = tuple(Tensor(f"{dtype}_{op}", (37, 129), dtype, op)
                      for dtype in ("fp32", "fp16", "bf16", "fp64") for op in (sums.SUM, sums.AVG)) + tuple(
                          Tensor(dtype, (37, 129), dtype) for dtype in ("int8", "uint8", "int32", "int64"))


class Shapes(ClusterCase):
    MACHINES = 4
    CONFIG = {"policy": {"codec": "fp32"}, "client": {"socket_mode": "0666"}}

    def test_uneven_ranks_per_machine(self):
        for places in ([0, 1, 1, 1, 2, 2], [0, 0, 0, 1], [2, 0, 1, 0, 3]):
            with self.subTest(places=places):
                job = self.job(places)
                comm = job.join()
                for step in (1, 2, 3):
                    job.step(comm, step)

    def test_four_machines_with_two_ranks_each(self):
        job = self.job([0, 0, 1, 1, 2, 2, 3, 3])
        comm = job.join()
        for step in (1, 2, 3):
            job.step(comm, step)

    def test_ranks_of_a_machine_that_are_not_neighbours(self):
        job = self.job([0, 1, 0, 1, 0])
        job.step(job.join(), 1)

    def test_one_rank_in_all(self):
        job = self.job([0])
        comm = job.join(tensors=ODD_TENSORS)
        job.step(comm, 1)
        job.step(comm, 2)

    def test_empty_tiny_and_indivisible_tensors(self):
        for places in ([0, 0], [0, 1], [0, 1, 2], [0, 1, 2, 3]):
            with self.subTest(places=places):
                job = self.job(places)
                comm = job.join(tensors=ODD_TENSORS)
                job.step(comm, 1)
                job.step(comm, 2)

    def test_every_element_type_in_steps(self):
        for places in ([0, 0], [0, 1], [0, 0, 1]):
            with self.subTest(places=places):
                job = self.job(places)
                job.step(job.join(tensors=TYPED_TENSORS), 1)

    def test_every_element_type_in_calls(self):
        job = self.job([0, 1, 1])
        comm = job.create("calls")
        for count in (0, 1, 1000, 300_001):
            for tensor in TYPED_TENSORS:
                with self.subTest(tensor=tensor.name, count=count):
                    self.check_call(job, comm, tensor.dtype, tensor.op, count)

    def check_call(self, job, comm, dtype, op, count):
        number, kind = sums.DTYPES[dtype]
        given = [sums.data(dtype, (count,), count, rank) for rank in range(len(job.ranks))]
        for rank, values in enumerate(given):
            values.tofile(job.path("in", rank))
            job.ranks[rank].send("allreduce", comm, number, op, count, values.nbytes, job.path("in", rank),
                                 job.path("out", rank))
        right = sums.expected(dtype, op, given, job.places)
        for rank in job.ranks:
            answer = rank.receive()
            self.assertTrue(answer.ok, answer.text)
        for rank in range(len(job.ranks)):
            got = np.fromfile(job.path("out", rank), kind)
            self.assertTrue(got.tobytes() == right.tobytes(), f"rank {rank} differs")

    def test_several_communicators_of_one_job(self):
        job = self.job([0, 0, 1, 1])
        comms = [job.join(f"model{i}", first_step=10 * i) for i in range(3)]
        for step in range(3):
            for i, comm in enumerate(comms):
                job.submit(comm, 10 * i + step)
            for i, comm in reversed(list(enumerate(comms))):
                job.must("wait", comm, 10 * i + step)
                job.check(comm, 10 * i + step)

    def test_several_jobs_at_once(self):
        jobs = [self.job(places) for places in ([0, 1], [1, 0], [0, 1, 2, 3], [2, 2])]
        comms = [job.join() for job in jobs]
        for step in (1, 2, 3):
            for job, comm in zip(jobs, comms):
                job.submit(comm, step)
            for job, comm in reversed(list(zip(jobs, comms))):
                job.must("wait", comm, step)
                job.check(comm, step)

    @unittest.skipUnless(os.geteuid() == 0, "a second user needs root")
    def test_two_users_with_jobs_of_one_name(self):
        jobs = [self.job([0, 1], name="training", uid=uid) for uid in (None, 65534)]
        comms = [job.join() for job in jobs]
        for step in (1, 2):
            for number, (job, comm) in enumerate(zip(jobs, comms)):
                job.submit(comm, step)
            for job, comm in zip(jobs, comms):
                job.must("wait", comm, step)
                job.check(comm, step)


class CompressedShapes(ClusterCase):
    """The default policy: not the reference's bits, but the same ones on every rank, and near."""

    MACHINES = 3
    CONFIG = {}
    TENSORS = (Tensor("large", (700, 311), op=sums.AVG), Tensor("odd", (3, 1667), op=sums.AVG),
               Tensor("half", (64, 65), "fp16"), Tensor("bias", (311,), op=sums.AVG), Tensor("counts", (5,), "int64"))

    def test_ranks_hold_the_same_bits_near_the_sum(self):
        for places in ([0, 1], [0, 0, 1, 2]):
            with self.subTest(places=places):
                job = self.job(places)
                comm = job.join(tensors=self.TENSORS)
                for step in (1, 2, 3):
                    job.submit(comm, step)
                    job.must("wait", comm, step)
                    self.check_near(job, comm, step)

    def check_near(self, job, comm, step):
        for index, tensor in enumerate(self.TENSORS):
            results = [job.result(comm, rank, index) for rank in range(len(job.ranks))]
            for other in results[1:]:
                self.assertTrue(results[0].tobytes() == other.tobytes(), tensor.name)
            right = job.expected(step, index)
            compressed = len(tensor.shape) > 1
            if not compressed:
                self.assertTrue(results[0].tobytes() == right.tobytes(), tensor.name)
            else:  # 4 bits twice: one unit of about 6 sigma / 15 each time
                difference = results[0].astype(np.float64) - right.astype(np.float64)
                spread = np.std(right.astype(np.float64))
                self.assertLess(np.sqrt(np.mean(difference ** 2)), 0.5 * spread, tensor.name)
                self.assertGreater(np.max(np.abs(difference)), 0, f"{tensor.name} was not compressed")


class TwoLevels(ClusterCase):
    """Racks of two machines, and tensors in pieces."""

    MACHINES = 4
    CONFIG = {"policy": {"codec": "fp32", "collective": "two_level", "rack_machines": 2, "segment_bytes": "64 KiB"}}

    def racked(self, places):
        job = self.job(places)
        job.rack_machines = 2
        return job

    def test_every_shape_and_type_gets_the_bits_of_its_racks(self):
        for places in ([0, 1, 2, 3], [0, 0, 1, 2, 3, 3]):
            with self.subTest(places=places):
                job = self.racked(places)
                comm = job.join(tensors=ODD_TENSORS + TYPED_TENSORS)
                for step in (1, 2, 3):
                    job.step(comm, step)

    def test_a_tensor_that_only_the_second_rack_has(self):
        job = self.racked([0, 1, 2, 3])
        comm = job.join()
        job.fill(comm, 1)
        for rank in range(4):
            job.must("submit", comm, 1, *range(0 if rank >= 2 else 1, len(job.tensors)), ranks=[rank])
        job.must("end", comm, 1)
        job.must("wait", comm, 1)
        job.check(comm, 1, absent={0: (0, 1)})

    def test_calls_go_as_ever_and_tensors_say_why_they_go_in_two_levels(self):
        job = self.racked([0, 1, 2, 3])
        job.step(job.join(), 1)
        listed = self.daemons[0].control_tool("tensors", "--job", job.name)
        ways = {(t["collective"], t["collective_reason"]) for t in listed["tensors"]}
        self.assertEqual(ways, {("two_level", "policy")})

    def test_machines_that_make_no_racks_are_told_so_at_the_commit(self):
        job = self.racked([0, 1, 2])
        comm = job.create("grads")
        job.register(comm, ODD_TENSORS)
        for answer in job.all("commit", comm):
            self.assert_status(answer, "INVALID_ARGUMENT", "rack_machines", "3 machines")


class CodecOfRacks(ClusterCase):
    """Racks of two machines that add uncompressed what they have, and send 4 bits to each other."""

    MACHINES = 4
    SHARD = 1 << 16
    TENSOR = Tensor("weight", (4 * SHARD // 512, 512))
    FOUR_BITS = SHARD // 2 + 8 * SHARD // 512
    CONFIG = {"policy": {"codec": "maxmin:4,bucket=512", "collective": "two_level", "rack_machines": 2}}

    def run_steps(self, rack_codec=None):
        """The error of a step, as a share of the sum's spread; what machine 0 sent to each other machine, in bytes a step."""
        job = self.job([0, 1, 2, 3])
        comm = job.join(tensors=(self.TENSOR,))
        if rack_codec:
            self.daemons[0].control_tool("policy", "apply", "--job", job.name, "--set", f"rack_codec={rack_codec}", "--wait", "0")
        warm, steps = 5, 4
        for step in range(1, warm + steps + 1):
            job.submit(comm, step)
            job.must("wait", comm, step)
            if step == warm:
                before = self.sent(job)
        after = self.sent(job)
        results = [job.result(comm, rank, 0) for rank in range(len(job.ranks))]
        for other in results[1:]:
            self.assertEqual(results[0].tobytes(), other.tobytes())
        right = job.expected(warm + steps, 0).astype(np.float64)
        error = np.sqrt(np.mean((results[0] - right) ** 2)) / np.std(right)
        listed, = self.daemons[1].control_tool("tensors", "--job", job.name)["tensors"]
        self.assertEqual((listed["codec"], listed.get("rack_codec", "")), ("maxmin:4,bucket=512", rack_codec or ""))
        said = [self.text(job, "tensors"), self.text(job, "plan", "show")]
        for text in said:
            self.assertEqual("in racks" in text, rack_codec is not None, text)
        self.assertEqual("maxmin:4,bucket=512, in racks fp32" in said[0], rack_codec == "fp32", said[0])
        return error, {machine: (after[machine] - before[machine]) / steps for machine in after}

    def text(self, job, *words):
        daemon = self.daemons[2]
        return daemon.machine.run([binary("cgxctl"), "--socket", daemon.control, *words, "--job", job.name],
                                  capture_output=True, text=True, check=True).stdout

    def sent(self, job):
        peers = self.daemons[0].control_tool("peers", "--job", job.name)["peers"]
        return {peer["machine"]: int(peer["bytes_sent"]) for peer in peers}

    def test_bytes_between_racks_are_as_before_and_errors_are_smaller(self):
        own, plain = self.run_steps()
        error, apart = self.run_steps("fp32")
        # To the neighbour two shards to add and two results, to the twin a rack's sum and a result.
        self.assertAlmostEqual(plain[1] / (4 * self.FOUR_BITS), 1, delta=0.02)
        self.assertAlmostEqual(apart[1] / (2 * 4 * self.SHARD + 2 * self.FOUR_BITS), 1, delta=0.02)
        for sent in (plain, apart):
            self.assertAlmostEqual(sent[2] / (2 * self.FOUR_BITS), 1, delta=0.02)
        self.assertLess(error, 0.96 * own)

    def test_what_cannot_be_is_refused_and_named(self):
        job = self.job([0, 1, 2, 3])
        job.join(tensors=(self.TENSOR,))
        for assignments, words in ((("rack_codec=topk:0.01",), "leaves values out"),
                                   (("rack_codec=maxmin:8,feedback",), "says feedback"),
                                   (("rack_codec=maxmax",), "rack_codec: "),
                                   (("codec=topk:0.01", "rack_codec=fp32"), "a bucket of topk:0.01, a frame holds 221184; bf16 or"),
                                   (("rack_codec=fp32", "collective=scatter"), "collective scatter, which has no racks")):
            given = [word for each in assignments for word in ("--set", each)]
            for command in ("check", "apply"):
                refused = self.daemons[0].control_tool("policy", command, "--job", job.name, *given, check=False)
                self.assertNotEqual(refused.returncode, 0, assignments)
                self.assertIn(words, refused.stderr)


if __name__ == "__main__":
    unittest.main()

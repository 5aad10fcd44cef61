"""Bad days: somebody dies, disagrees or asks for what cannot be. Everybody who waits is told who, in time.

A bystander, a second job on the same daemons, makes a step with the right bits after each of them.
"""

import os
import signal
import time
import unittest

import numpy as np

from cluster_case import ClusterCase, figure
from ranks import TENSORS, Rank, Tensor

DEAD_PROCESS_S = 1.0
DEAD_DAEMON_S = 4.0
MISMATCH_S = 0.2
MEETING_S = 1.0  # the link between the machines is made meanwhile
AT_ONCE_S = 0.1
STORE_S = 0.5  # how long an impatient rank's store waits (rank.c)
BUSY_S = 1.5  # what a machine busy with other work, or one that stood still for a second, may add


class BadDay(ClusterCase):
    """Machines with a bystander; whatever a test does to others, it goes on."""

    MACHINES = 3

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.start_bystander()

    def tearDown(self):
        self.bystander_steps()

    def assert_all_learn(self, answers, since, limit_s, status, *texts):
        """All waiters have this status by `limit_s` after the moment `since`."""
        for answer in answers:
            self.assert_status(answer, status, *texts)
        slowest = max(answer.ended for answer in answers) - since
        figure(self.id().rsplit(".", 1)[-1], slowest, limit_s)
        self.assertLess(slowest, limit_s + BUSY_S)

    def joining(self, job, name="grads"):
        """On how many machines the communicator waits for others."""
        listed = [daemon.control_tool("jobs") for daemon in self.daemons]
        return sum((c["job"], c["name"], c["state"]) == (job.name, name, "joining")
                   for jobs in listed for c in jobs["communicators"])


class DeadRanks(BadDay):
    def setUp(self):
        self.victims = self.job([0, 0, 1, 2])
        self.comm = self.victims.join()
        self.victims.step(self.comm, 1)
        self.rest = [0, 2, 3]

    def wait_and_kill(self, step):
        """Rank 1 dies while the others wait; returns their answers and when it died."""
        for rank in self.rest:
            self.victims.ranks[rank].send("wait", self.comm, step)
        died = self.victims.ranks[1].kill()
        return [self.victims.ranks[rank].receive() for rank in self.rest], died

    def test_a_rank_killed_in_an_open_step(self):
        self.victims.submit(self.comm, 2, ranks=self.rest)
        self.victims.ranks[1].must("submit", self.comm, 2, 0)
        answers, died = self.wait_and_kill(2)
        self.assert_all_learn(answers, died, DEAD_PROCESS_S, "RANK_LOST", "rank 1 ", self.victims.name)
        for rank in self.rest:  # and nobody who comes later waits
            self.assertEqual(self.victims.ranks[rank].ask("submit", self.comm, 3, 0).status, "STEP_ORDER")
            self.assert_status(self.victims.ranks[rank].ask("redo", self.comm), "RANK_LOST", "rank 1 ")

    def test_a_killed_rank_whose_child_holds_its_descriptors(self):
        child = self.victims.ranks[1].must("fork").value
        self.addCleanup(os.kill, child, signal.SIGKILL)
        self.victims.submit(self.comm, 2, ranks=self.rest)
        answers, died = self.wait_and_kill(2)
        self.assert_all_learn(answers, died, DEAD_PROCESS_S, "RANK_LOST", "rank 1 ")

    def test_the_survivors_go_on_in_a_new_communicator(self):
        self.victims.submit(self.comm, 2, ranks=self.rest)
        self.wait_and_kill(2)
        survivors = [self.victims.ranks[rank] for rank in self.rest]
        for number, rank in enumerate(survivors):
            rank.send("create", "grads2", number, len(survivors), 1, 60000, self.victims.folder)
        for rank in survivors:
            self.assert_status(rank.receive(), "OK")

    def test_a_rank_killed_in_a_call(self):
        comm = self.victims.create("calls")
        for rank in self.rest:
            self.victims.data(1, rank, 1).tofile(self.victims.path("in", rank))
            self.victims.ranks[rank].send("allreduce", comm, 0, 0, 41, 164, self.victims.path("in", rank),
                                          self.victims.path("out", rank))
        died = self.victims.ranks[1].kill()
        answers = [self.victims.ranks[rank].receive() for rank in self.rest]
        self.assert_all_learn(answers, died, DEAD_PROCESS_S, "RANK_LOST", "rank 1 ")

    def test_a_rank_killed_while_others_join(self):
        late = self.victims.ranks[3]
        for rank in (0, 1, 2, 3):
            self.victims.create_soon(rank, "late", "hold" if rank == 3 else "-")
        self.wait_until(lambda: self.joining(self.victims, "late") == 2, "the joining of two machines")
        died = self.victims.ranks[1].kill()
        answers = [self.victims.ranks[rank].receive() for rank in (0, 2)]
        self.assert_all_learn(answers, died, DEAD_PROCESS_S, "RANK_LOST", "rank 1 ")
        go = time.monotonic()
        open(self.victims.path("go"), "w", encoding="utf-8").close()
        self.assert_all_learn([late.receive()], go, MEETING_S, "RANK_LOST", "rank 1 ")

    def test_a_rank_killed_in_a_commit(self):
        self.victims.create("more")
        for rank in self.rest:
            self.victims.ranks[rank].send("commit", 1)
        died = self.victims.ranks[1].kill()
        answers = [self.victims.ranks[rank].receive() for rank in self.rest]
        self.assert_all_learn(answers, died, DEAD_PROCESS_S, "RANK_LOST", "rank 1 ")


class DeadBeforeTheyMet(BadDay):
    """Ranks that die while no daemon knows the members of their communicator."""

    def come(self, job, *ranks, trick="-", **options):
        for rank in ranks:
            job.create_soon(rank, trick=trick, **options)
            self.wait_until(lambda: os.path.exists(self.place(job, rank)), f"the coming of rank {rank}")

    @staticmethod
    def place(job, rank):
        return job.path(f"cgx_{job.name}_grads_member_{rank}")

    def die(self, job, rank):
        died = job.ranks[rank].kill()
        job.ranks[rank].process.wait()
        return died

    def test_a_rank_that_its_daemon_saw_die_is_named_to_all_that_wait(self):
        for victim in (1, 0):
            job = self.job([0, 0, 1, 2, 2])
            self.come(job, 0, 1, 2, 3)  # rank 4 has not come
            died = self.die(job, victim)
            answers = [job.ranks[rank].receive() for rank in (0, 1, 2, 3) if rank != victim]
            self.assert_all_learn(answers, died, DEAD_PROCESS_S, "RANK_LOST", f"rank {victim} of communicator 'grads'",
                                  "is gone")

    def test_a_rank_whose_death_nobody_saw_is_named_at_the_time_out(self):
        job = self.job([0, 1, 2])
        self.come(job, 2)
        self.die(job, 2)
        began = time.monotonic()
        self.come(job, 0, 1, timeout_ms=2000)
        answers = [job.ranks[rank].receive() for rank in (0, 1)]
        self.assert_all_learn(answers, began, 2.0, "TIMED_OUT", "missing: rank 2")

    def test_a_rank_that_dies_between_its_meeting_and_its_joining(self):
        job = self.job([0, 1, 1, 2])
        self.come(job, 1, trick="hold")
        self.come(job, 0, 2, 3)
        self.wait_until(lambda: self.joining(job) == 3, "the joining of three machines")
        died = self.die(job, 1)
        answers = [job.ranks[rank].receive() for rank in (0, 2, 3)]
        self.assert_all_learn(answers, died, DEAD_PROCESS_S, "RANK_LOST", "rank 1 of communicator 'grads'", "is gone")

    def test_what_made_rank_0_give_up_is_told_to_the_others(self):
        for trick, status, words in (("impatient", "TIMED_OUT", "missing: rank 2"),
                                     ("broken", "UNAVAILABLE", "/answer/2 returned -7")):
            with self.subTest(trick):
                job = self.job([0, 1, 2])
                self.come(job, 2)
                self.die(job, 2)
                began = time.monotonic()
                self.come(job, 1)
                self.come(job, 0, trick=trick)
                answers = [job.ranks[rank].receive() for rank in (0, 1)]
                self.assert_all_learn(answers, began, STORE_S, status, words)
                self.assertIn("rank 0 gave up: ", answers[1].text)


class DeadRankOnASlowLink(BadDay):
    def test_a_rank_killed_with_its_data_on_the_wire(self):
        self.machines.shape("1gbit")
        self.addCleanup(self.machines.shape, "unshaped")
        victims = self.job([0, 0, 1, 2], arena_bytes=80 << 20)
        comm = victims.join(tensors=(Tensor("large", (16 << 20,)),))
        victims.submit(comm, 1)  # 64 MiB, half a second on the wire
        for rank in (0, 2, 3):
            victims.ranks[rank].send("wait", comm, 1)
        died = victims.ranks[1].kill()
        answers = [victims.ranks[rank].receive() for rank in (0, 2, 3)]
        self.assert_all_learn(answers, died, DEAD_PROCESS_S, "RANK_LOST", "rank 1 ")
        daemon = self.daemons[0].process.pid
        self.wait_until(lambda: arenas_mapped(daemon) == 2, "unmapping of the dead rank's arena")


def arenas_mapped(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        return sum("memfd:cgx-arena" in line for line in file)


class DeadDaemon(BadDay):
    def test_a_killed_daemon_is_named_by_the_others_and_can_come_back(self):
        victims = self.job([0, 1, 2, 2])
        comm = victims.join()
        victims.step(comm, 1)
        victims.submit(comm, 2, ranks=[0, 1, 2])
        for rank in (0, 1, 2):
            victims.ranks[rank].send("wait", comm, 2)
        died = self.kill(self.daemons[2])
        answers = [victims.ranks[rank].receive() for rank in (0, 1, 2)]
        self.assert_all_learn(answers[:2], died, DEAD_DAEMON_S, "PEER_LOST", "machine 2", "ranks 2, 3")
        self.assert_all_learn(answers[2:], died, DEAD_PROCESS_S, "DAEMON_LOST")
        self.daemons[2].start()
        self.assert_daemons_serve()

    def test_a_coordinators_daemon_killed(self):
        victims = self.job([2, 0, 1])
        comm = victims.join()
        victims.submit(comm, 1, ranks=[0, 1])
        for rank in (0, 1):
            victims.ranks[rank].send("wait", comm, 1)
        victims.ranks[2].must("submit", comm, 1, 0)
        died = self.kill(self.daemons[2])
        answers = [victims.ranks[rank].receive() for rank in (0, 1)]
        self.assert_all_learn(answers[1:], died, DEAD_DAEMON_S, "PEER_LOST", "rank 0")
        self.assert_all_learn(answers[:1], died, DEAD_PROCESS_S, "DAEMON_LOST")
        self.daemons[2].start()
        self.assert_daemons_serve()

    def kill(self, daemon):
        at = time.monotonic()
        daemon.process.kill()
        daemon.process.wait()
        return at


class Disagreement(BadDay):
    def refuse(self, tensors_of, *texts):
        """Commits a table per rank; all are told."""
        for places in ([0, 0], [0, 1]):
            with self.subTest(places=places):
                job = self.job(places)
                comm = job.create()
                for rank in range(2):
                    job.register(comm, tensors_of(rank), ranks=[rank])
                answers = job.all("commit", comm)
                self.assert_all_learn(answers, max(a.began for a in answers), MISMATCH_S, "MISMATCH", "rank 0",
                                      "rank 1", *texts)

    def test_ranks_that_disagree_on_a_size(self):
        self.refuse(lambda rank: [Tensor("same"), Tensor("weight", (8, 4 + rank))], "weight", "32", "40")

    def test_ranks_that_disagree_on_a_type(self):
        self.refuse(lambda rank: [Tensor("weight", (8, 4), ["fp32", "bf16"][rank])], "weight", "fp32", "bf16")

    def test_ranks_that_disagree_on_an_operation(self):
        self.refuse(lambda rank: [Tensor("weight", (8, 4), op=rank)], "weight", "sum", "avg")

    def test_ranks_that_disagree_on_a_name(self):
        self.refuse(lambda rank: [Tensor(["left", "right"][rank])], "left", "right")

    def test_ranks_that_disagree_on_the_number_of_tensors(self):
        self.refuse(lambda rank: [Tensor(f"t{i}") for i in range(3 + rank)], "3", "4")

    def test_ranks_that_disagree_on_a_call(self):
        first = {"dtype": 0, "op": 0, "count": 24}
        for places in ([0, 0], [0, 1], [0, 1, 2]):
            for key, other in (("count", 12), ("dtype", 1), ("op", 1)):
                with self.subTest(places=places, differs=key):
                    self.call_mismatch(places, first, {**first, key: other})

    def call_mismatch(self, places, first, other):
        job = self.job(places)
        comm = job.create()
        calls = [first] * (len(places) - 1) + [other]
        for rank, call in enumerate(calls):
            np.zeros(24, np.float32).tofile(job.path("in", rank))
            job.ranks[rank].send("allreduce", comm, call["dtype"], call["op"], call["count"], 96,
                                 job.path("in", rank), job.path("out", rank))
        answers = [rank.receive() for rank in job.ranks]
        self.assert_all_learn(answers, max(a.began for a in answers), MISMATCH_S, "MISMATCH", f"rank {len(places) - 1}")

    def test_ranks_that_disagree_on_the_first_step(self):
        for places in ([0, 0], [0, 1]):
            with self.subTest(places=places):
                job = self.job(places)
                for rank in range(2):
                    job.create_soon(rank, first_step=5 + rank)
                answers = [rank.receive() for rank in job.ranks]
                self.assert_all_learn(answers, max(a.began for a in answers), MEETING_S, "MISMATCH", "first step")

    def test_ranks_that_disagree_on_the_number_of_ranks(self):
        job = self.job([0, 1])
        for rank in range(2):
            job.create_soon(rank, size=2 + rank)
        answers = [rank.receive() for rank in job.ranks]
        self.assert_all_learn(answers, max(a.began for a in answers), MEETING_S, "MISMATCH", "rank", "2", "3")

    def submit_twice(self, job, comm, beside):
        """Rank 1 does in step 2, while the ranks `beside` wait for it; returns what these are told."""
        job.submit(comm, 2, ranks=beside)
        for rank in beside:
            job.ranks[rank].send("wait", comm, 2)
        self.wait_until(lambda: self.heard(job, 2, beside), "the reading of what they submitted")
        job.ranks[1].must("submit", comm, 2, 0)
        again = job.ranks[1].ask("submit", comm, 2, 0)
        self.assert_status(again, "STEP_ABANDONED", "weight")
        answers = [job.ranks[rank].receive() for rank in beside]
        self.assert_all_learn(answers, again.began, MISMATCH_S, "STEP_ABANDONED", "rank 1", "weight")

    def test_a_rank_that_submits_twice_fails_the_step_everywhere_and_all_redo_it(self):
        job = self.job([0, 0, 1])
        comm = job.join()
        job.step(comm, 1)
        self.submit_twice(job, comm, beside=[0, 2])
        self.assertEqual([a.value for a in job.must("redo", comm)], [2, 2, 2])
        job.step(comm, 2)
        job.step(comm, 3)

    def test_a_rank_whose_first_word_comes_after_the_failure_is_not_told_and_takes_part(self):
        job = self.job([0, 0, 1])
        comm = job.join()
        job.step(comm, 1)
        self.submit_twice(job, comm, beside=[2])
        job.submit(comm, 2, ranks=[0])
        job.ranks[0].send("wait", comm, 2)
        self.assertEqual([a.value for a in job.must("redo", comm, ranks=[1, 2])], [2, 2])
        job.submit(comm, 2, ranks=[1, 2])
        job.must("wait", comm, 2, ranks=[1, 2])
        self.assert_status(job.ranks[0].receive(), "OK")
        job.check(comm, 2)


class Misuse(BadDay):
    def test_a_wait_inside_an_open_step(self):
        job = self.job([0, 1])
        comm = job.join()
        job.must("submit", comm, 1, 0, 1, 2)
        for answer in job.all("wait", comm, 1):
            self.assert_status(answer, "STEP_OPEN", "step 1")
            self.assertLess(answer.seconds, AT_ONCE_S + BUSY_S)
        job.must("end", comm, 1)
        job.must("wait", comm, 1)

    def test_an_unused_parameter(self):
        job = self.job([0, 0, 1])
        comm = job.join()
        job.fill(comm, 1)
        for rank, used in enumerate(([0, 1], [0], [0, 1])):  # 1 is unused on rank 1, 2 on all
            job.ranks[rank].must("submit", comm, 1, *used)
        job.must("end", comm, 1)
        job.must("wait", comm, 1)
        for rank, states in enumerate(((2, 0, 1), (1, 1, 1), (2, 0, 1))):
            info = job.ranks[rank].must("info", comm, 1).more
            self.assertEqual((info["results"], info["filled"], info["absent"]), states)
        for rank in range(3):
            for index, absent in ((0, ()), (1, (1,))):
                got = job.result(comm, rank, index)
                self.assertTrue(got.tobytes() == job.expected(1, index, absent).tobytes(), f"rank {rank} tensor {index}")
            untouched = job.result(comm, rank, 2)
            self.assertTrue(untouched.tobytes() == job.data(1, rank, 2).tobytes())

    def test_a_second_process_of_a_rank_that_has_joined(self):
        job = self.job([0, 1])
        comm = job.join()
        job.step(comm, 1)
        for place in (1, 0):  # the rank's own machine, and another that knows it
            answer = self.second_process(job, 1, place)
            self.assert_status(answer, "ALREADY_EXISTS", "rank 1 of communicator 'grads'", "is alive")
            self.assertLess(answer.seconds, AT_ONCE_S + BUSY_S)
        job.step(comm, 2)

    def second_process(self, job, rank, place):
        process = Rank(self.daemons[place])
        self.addCleanup(process.end)
        process.must("open", job.name)
        return process.ask("create", "grads", rank, len(job.ranks), 1, 10000, job.folder)

    def test_a_second_process_of_a_rank_that_waits_for_others(self):
        for rank in (1, 0):
            job = self.job([0, 0, 1, 2])
            for first in (0, 1, 2):
                job.create_soon(first)
                self.wait_until(lambda: os.path.exists(job.path(f"cgx_{job.name}_grads_member_{first}")), "its coming")
            for place, limit_s in ((0, AT_ONCE_S), (2, MEETING_S)):  # told by its daemon, told through the store
                with self.subTest(rank=rank, place=place):
                    answer = self.second_process(job, rank, place)
                    self.assert_status(answer, "ALREADY_EXISTS", f"rank {rank} of communicator", "alive")
                    self.assertLess(answer.seconds, limit_s + BUSY_S)
            job.create_soon(3)
            comms = [each.receive() for each in job.ranks]
            for answer in comms:
                self.assert_status(answer, "OK")
            job.register(comms[0].value, TENSORS)
            job.must("commit", comms[0].value)
            job.tensors = TENSORS
            job.step(comms[0].value, 1)

    def test_a_full_arena(self):
        job = self.job([0, 1], arena_bytes=4 << 20)
        comm = job.join()
        for size in (1 << 40, 1 << 62):
            answer = job.ranks[0].ask("alloc", size)
            self.assert_status(answer, "RESOURCE_EXHAUSTED", str(size))
        statuses = [job.ranks[0].ask("alloc", 5 << 20).status for _ in range(9)]
        self.assertEqual(statuses[0], "OK")
        job.step(comm, 1)


if __name__ == "__main__":
    unittest.main()

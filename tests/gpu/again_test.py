"""What comes after something has failed, in the same job and on the same GPU: real daemons, the stand-in driver."""

import os
import signal
import unittest

from cluster_case import figure
from gpu_driver import of_the_standin
from worker_test import HERE, WorkerCase


class AgainCase(WorkerCase):
    MACHINES = 1
    RANK = os.path.join(HERE, "gpu_again_rank.py")

    def ranks(self, part, count=2, **options):
        return self.begin(["arena"] * count, part, places=[0] * count, **options)

    def at(self, ranks, line):
        """What each has said before it said that."""
        said = []
        for rank in ranks:
            said.append([])
            while not said[-1] or said[-1][-1] != line:
                said[-1].append(rank.stdout.readline().rstrip())
                self.assertTrue(said[-1][-1], rank.poll() or said)
        return [lines[:-1] for lines in said]

    def rest(self, ranks):
        """What each says after a line; all end well."""
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
        out = [rank.communicate(timeout=60) for rank in ranks]
        self.assertEqual([(rank.returncode, errors) for rank, (_, errors) in zip(ranks, out)], [(0, "")] * len(ranks))
        return [text.splitlines() for text, _ in out]


class Joining(AgainCase):
    def test_a_gpu_is_there_at_once_after_ranks_that_did_not_fit_together(self):
        ranks = self.ranks("refused")
        for lines in self.at(ranks, "left"):
            self.assertRegex(lines[0], "^refused: (slow )?MismatchError ")
        self.wait_until(lambda: not self.daemons[0].control_tool("status").get("sessions"), "the end of the sessions")
        said = self.rest(ranks)
        self.assertEqual(said[0], said[1])
        self.assertRegex(said[0][0], "^sum ")
        self.no_workers_left()


@of_the_standin
class FullGpu(AgainCase):
    def test_an_arena_takes_no_more_of_a_gpu_than_there_is_or_is_needed(self):
        for arena_bytes, memory in ((0, "60M"), (1 << 30, "160M")):
            said = self.run_ranks(["arena"], f"full={arena_bytes}", words=f"memory={memory}", places=[0])[0].splitlines()
            self.assertEqual([line.split()[2] for line in said], ["5000", str(5 << 20)], (arena_bytes, memory))


class ManyArrays(AgainCase):
    def test_arenas_on_a_gpu_grow_with_what_there_is(self):
        self.assertEqual(self.run_ranks(["arena"], "many", places=[0])[0].splitlines(), ["made 70"])


class WorkerDied(AgainCase):
    def kill_workers(self):
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)
        self.no_workers_left()

    def test_a_session_closes_within_a_second_however_much_it_has_imported(self):
        ranks = self.ranks("bereft", 1)
        self.at(ranks, "ready")
        self.kill_workers()
        lost, closed = self.rest(ranks)[0]
        self.assertRegex(lost, "^lost: (slow )?DeviceLostError ")
        seconds = float(closed.split()[1])
        figure("a session with eight imports of a dead worker closes", seconds, 2.0)
        self.assertLess(seconds, 3.5)  # on a busy machine; a second for each import would be eight

    def test_memory_of_a_dead_worker_is_no_home_and_says_so_on_its_rank(self):
        ranks = self.ranks("homes")
        self.at(ranks, "ready")
        self.kill_workers()
        for lines in self.rest(ranks):
            wanted = ("lost: .*DeviceLostError ", "old: .*InvalidArgumentError .*tensor tensor of 5000 fp32: its home lies in memory that "
                      "a GPU worker had which has died", "new: (slow )?OK", "committed: (slow )?OK")
            self.assertEqual(len(lines), len(wanted))
            for line, want in zip(lines, wanted):
                self.assertRegex(line, f"^{want}")


if __name__ == "__main__":
    unittest.main()

"""What is still on the streams of a GPU when nobody asks for it any more: memory that must not be given away or freed yet."""

import os
import signal
import unittest

from gpu_driver import of_the_standin
from worker_test import WorkerCase

RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu_queued_rank.py")


class Queued(WorkerCase):
    """Copies that are still on streams when nobody asks for them any more."""

    RANK = RANK

    @of_the_standin
    def test_memory_of_a_refused_tensor_is_nobody_elses_before_its_copy_is_made(self):
        self.assertEqual(self.run_ranks(["copied"] * 2, "overtaken", places=[0, 0]),
                         self.run_ranks(["host"] * 2, "overtaken", places=[0, 0]))

    @of_the_standin
    def test_a_copy_is_over_only_when_the_driver_says_so(self):
        self.run_ranks(["copied"], "unsaid", words="", places=[0])

    @of_the_standin
    def test_a_graph_that_another_thread_captures_is_not_disturbed(self):
        for words in ("", "without=vmm", "without=words", "without=vmm without=ipc"):
            self.run_ranks(["copied"], "capturing", words=words, places=[0])

    @of_the_standin
    def test_streams_that_come_and_go_have_words(self):
        self.run_ranks(["arena"], "streams", places=[0])


class Closing(WorkerCase):
    """A session that closes while its GPU is behind, because another rank was lost."""

    RANK = RANK

    def closed(self, kind, seconds, words=""):
        ranks = self.begin([kind] * 2, f"closing={seconds}", words=words, places=[0, 0])
        (out, errors), _ = (rank.communicate(timeout=60) for rank in ranks)
        self.assertEqual((ranks[0].returncode, errors), (0, ""))
        self.assertNotIn("VIOLATION", self.daemons[0].log())
        return out.splitlines()

    @of_the_standin
    def test_memory_is_kept_until_streams_have_done_what_was_handed_over(self):
        for kind, words in (("copied", ""), ("copied", "without=vmm"), ("copied", "without=words"), ("imported", "")):
            lines = self.closed(kind, 1.5, words)
            self.assertRegex(lines[0], "^lost: (slow )?(RankLostError|PeerLostError) ")
            for line in lines[1:]:
                self.assertRegex(line, "^(ended|closed): (slow )?OK")
            self.assertEqual(len(lines), 3 if kind == "imported" else 2)

    @of_the_standin
    def test_a_child_that_closes_leaves_the_driver_alone(self):
        for words in ("", "without=vmm"):
            self.run_ranks(["copied"], "forked", words=words, places=[0])

    @of_the_standin
    def test_memory_that_the_worker_still_has_open_is_not_freed(self):
        self.no_workers_left()
        rank = self.begin(["copied"], "parting", words="without=vmm", places=[0])[0]
        self.assertEqual(rank.stdout.readline(), "ready\n")
        workers = self.workers()
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        out, errors = rank.communicate("\n", timeout=30)
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        self.assertEqual((len(workers), rank.returncode, errors), (1, 0, ""))
        self.assertRegex(out, "^closed: slow OK")

    @of_the_standin
    def test_a_stream_that_gets_stuck_keeps_nobody_from_closing(self):
        self.assertRegex(self.closed("copied", 600)[-1], "^closed: slow TimedOutError TIMED_OUT: copies between the GPU and the arena still wait")


if __name__ == "__main__":
    unittest.main()

"""Networks with outages under the tcp transport: no job is ended, every step has the right bits.

CGX_OUTAGES=20: so many of each length, and 30 s of loss; the figures of RESULTS.md.
"""

import os
import threading
import time
import unittest

import troubles
from cluster_case import ClusterCase, figure
from daemons import merged
from machines import isolation_possible
from ranks import ANSWER_S, Tensor

COUNT = int(os.environ.get("CGX_OUTAGES", "0"))
LENGTHS = {"away": (0.2, 0.5, 1.0, 2.0, 3.0) if COUNT else (0.2, 3.0),
           "silent": (0.2, 0.5, 1.0, 2.0, 3.0) if COUNT else (3.0,)}
LOSS, LOSS_S = 0.2, 30.0 if COUNT else 2.0
BACK_S = 3.0  # from the end of an outage to the end of a step
TRIED_AGAIN_S = 3.0  # how long a TCP connection in back-off may wait besides
PEER_LOST_S = 4.0  # the default of timeouts.peer_lost_ms
LONG = (Tensor("long", (320, 264)),)  # each way a frame of 169 kB, which 300 kbit/s carry in 4.5 s and the queue holds
DEEP, DEEP_S = (Tensor("deep", (500, 500)),), 90.0  # what 300 kbit/s carry in half a minute, and the time it may take
LARGE = (Tensor("large", (1000, 1003)), Tensor("small", (64,)))
SMALL = (Tensor("matrix", (100, 103)), Tensor("small", (64,)))


@unittest.skipUnless(isolation_possible(), "links of our own need root")
class Paths(ClusterCase):
    CONFIG = {"policy": {"codec": "fp32"}, "transport": {"name": "tcp"}}

    def start(self, tensors, timeout_s=60):
        self.running = self.job([0, 1])
        self.comm = self.running.join(tensors=tensors, timeout_ms=int(1000 * timeout_s))
        self.steps = 0
        self.step()

    def step(self, timeout_s=ANSWER_S):
        """A step with the right bits; when the last rank submitted and when all had the results, by their clocks."""
        self.steps += 1
        self.running.fill(self.comm, self.steps)
        everything = range(len(self.running.tensors))
        began = max(answer.began for answer in self.running.must("submit", self.comm, self.steps, *everything))
        self.running.must("end", self.comm, self.steps)
        ended = max(answer.ended for answer in self.running.must("wait", self.comm, self.steps, timeout_s=timeout_s))
        self.running.check(self.comm, self.steps)
        return began, ended

    def links_lost(self):
        return sum(daemon.counters()["connections_lost"] for daemon in self.daemons)


class Outages(Paths):
    def steps_during(self, trouble, seconds):
        """Steps go on while the trouble lasts and until one has begun after it; returns the longest that one of them took
        from when the trouble was over: without the time in which the test makes values and looks at results."""
        ended = []

        def happen():
            with trouble:
                threading.Event().wait(seconds)
            ended.append(time.monotonic())

        happening = threading.Thread(target=happen)
        happening.start()
        last = self.step()
        while happening.is_alive():
            last = self.step()
        happening.join()
        return max(step_ended - max(step_began, ended[0]) for step_began, step_ended in (last, self.step()))

    def outages(self, kind):
        self.start(LARGE)
        for seconds in LENGTHS[kind]:
            waits = []
            for _ in range(max(1, COUNT)):
                waits.append(self.steps_during(getattr(troubles, kind)(self.machines[1]), seconds))
            waits.sort()
            figure(f"{kind} for {seconds:g} s, {len(waits)} times: right bits after it, median {waits[len(waits) // 2]:.3f}, "
                   "longest", waits[-1], BACK_S)
            self.assertLess(waits[-1], BACK_S)

    def test_an_interface_away_for_up_to_three_seconds_is_no_fault(self):
        self.outages("away")

    def test_a_path_that_carries_nothing_for_up_to_three_seconds_is_no_fault(self):
        self.outages("silent")

    def test_a_path_that_loses_every_fifth_packet_is_no_fault(self):
        for machine in self.machines:
            troubles.send_small_packets(machine)
        self.start(SMALL)
        before = self.steps
        waited = self.steps_during(troubles.lossy(self.machines[1], LOSS, seed=5), LOSS_S)
        print(f"{self.steps - before} steps in {LOSS_S:g} s with {LOSS:.0%} of the packets lost")
        figure("right bits after the loss", waited, BACK_S)
        self.assertLess(waited, BACK_S + TRIED_AGAIN_S)


class DeepQueue(Paths):
    """Not with bbr, which may rest for longer here than a peer may be silent (transport/README.md, 20)."""

    CONFIG = merged(Paths.CONFIG, {"transport": {"congestion_control": "cubic"}})

    def test_a_frame_that_is_longer_under_way_than_a_peer_may_be_silent_is_no_fault(self):
        self.start(LONG)
        before = self.links_lost()
        self.machines.shape("300kbit-8s")  # where nothing gets lost: TCP's waiting for what is, is not what this is about
        self.addCleanup(self.machines.shape, "unshaped")
        began = time.monotonic()
        self.step()
        self.assertGreater(time.monotonic() - began, PEER_LOST_S, "the path is not slow")
        self.assertEqual(self.links_lost(), before, "a connection was given up that carried something")

    def test_a_queue_of_eight_seconds_that_overflows_is_no_fault(self):
        """What the queue lost comes again behind all it holds: meanwhile nothing of the stream can be handed on.

        Mostly the connection stays; who gives it up and makes another has resent what it held, and lost nothing.
        """
        self.start(DEEP, timeout_s=DEEP_S)
        before = self.links_lost()
        self.machines.shape("300kbit-8s")
        self.addCleanup(self.machines.shape, "unshaped")
        self.step(timeout_s=DEEP_S)
        print(f"connections given up meanwhile: {self.links_lost() - before}")


if __name__ == "__main__":
    unittest.main()

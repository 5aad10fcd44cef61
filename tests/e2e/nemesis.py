"""Faults in random order over daemons on three machines, with a second job whose every step is checked.

usage: nemesis.py [--seconds N] [--seed S] [--first R] [--transport NAME] [--pace S]

Round after round one job is hurt: a rank killed or stopped, a daemon killed or stopped, a machine's network cut without
a word, taken down or made lossy, descriptors used up, policies changed, junk said to every port. What its ranks may be
told, how soon, and of whom follows from the deed (DEEDS). Then it meets again under the same name, survivors and new
processes, and its next step has the right bits. Meanwhile another job over machines 0 and 1 makes steps, and each has
the right bits. In the end the daemons hold what they held before. What else happens is a violation: it is printed with
the seed and the trace; `--seed S --first R` begins with that round. Needs root: machines are network namespaces.
"""

import argparse
import collections
import os
import random
import re
import sys
import tempfile
import threading
import time

from cluster_case import RAW
from daemons import Daemon, merged
from machines import Machines, isolation_possible
from nemesis_deeds import BACKDROPS, BUSY_S, DEEDS
from ranks import Job, Rank, Tensor
from use import Holding, settle

METRICS_PORT = 9464
LINGER_S = 3.0    # a link outlives its job by this
MORE_BYTES = 16 << 20  # of memory that a daemon may hold in the end
MEET_S = 10.0     # a job that was hurt is running again
ROUNDS_PER_JOB = 12
PLACES = ([0, 1, 2], [2, 0, 1], [0, 2, 2], [1, 2], [2, 1, 0, 2])
TENSORS = (Tensor("weight", (300, 41)), Tensor("bias", (41,)), Tensor("large", (64, 1021)))


class Violation(Exception):
    pass


class Bystander(threading.Thread):
    """The job that nobody hurts."""

    def __init__(self, daemons, pace_s=0.0):
        super().__init__(daemon=True)
        self.pace_s = pace_s  # between two steps
        self.job = Job(daemons, [0, 1, 1], name="bystander")
        self.comm = self.job.join()
        self.steps, self.times_s, self.problem = 0, [], None
        self.stopped = threading.Event()

    def run(self):
        while not self.stopped.is_set() and self.problem is None:
            try:
                seconds = self.job.step(self.comm, self.steps + 1)
            except (AssertionError, OSError) as error:
                self.problem = f"the bystander's step {self.steps + 1}: {error}"
                return
            self.steps += 1
            self.times_s.append(seconds)
            time.sleep(self.pace_s)

    def end(self):
        self.stopped.set()
        self.join(30)
        self.job.must("close")
        self.job.close()


class Victim:
    """The job that is hurt: who is in it, and its communicator, met again as often as it takes."""

    def __init__(self, nemesis, places, name):
        self.nemesis, self.places = nemesis, places
        self.job = Job(nemesis.daemons, places, name=name)
        self.next_step = 1
        self.comms = [None] * len(places)
        self.meet()

    def meet(self):
        """Everybody makes the communicator, under the same name each time."""
        first = self.next_step
        answers = self.job.all("create", "grads", "%d", len(self.places), first, 20000, self.job.folder)
        for rank, answer in enumerate(answers):
            if not answer.ok:
                raise Violation(f"rank {rank} did not meet again: {answer.status}: {answer.text}")
        self.comms = [answer.value for answer in answers]
        self.job.register(self.comms, TENSORS)
        self.job.must("commit", self.comms)
        self.job.tensors = TENSORS

    def step(self):
        self.job.step(self.comms, self.next_step)
        self.next_step += 1

    def begin_step(self):
        """All have submitted and wait; the answers are to be received."""
        self.job.submit(self.comms, self.next_step)
        for rank, each in enumerate(self.job.ranks):
            each.send("wait", self.comms[rank], self.next_step)

    def replace_lost(self, told):
        """Who died is started anew, who lost its daemon opens a new session, the others close what failed."""
        for rank, answer in enumerate(told):
            process = self.job.ranks[rank]
            if answer is None:
                process.end()
                self.job.ranks[rank] = Rank(self.nemesis.daemons[self.places[rank]])
            elif answer.status == "DAEMON_LOST":
                process.ask("close")
            else:
                process.must("close_comm", self.comms[rank])
                continue
            self.open(rank)
        self.next_step += 1

    def open(self, rank):
        answer = self.job.ranks[rank].ask("open", self.job.name, "-", 8 << 20)
        if not answer.ok:
            raise Violation(f"rank {rank} got no session: {answer.status}: {answer.text}")

    def close(self):
        self.job.must("close")
        self.job.close()


class Nemesis:
    OPEN_FILES = 256  # of a daemon, so that they can be used up

    def __init__(self, options, directory):
        self.options = options
        self.began = time.monotonic()
        self.trace, self.counts = [], collections.Counter()
        # By deed: told, met again under the same name, made and checked a step from then on.
        self.told_s, self.met_s, self.again_s = (collections.defaultdict(list) for _ in range(3))
        self.machines = Machines(3)
        config = merged(RAW, {"transport": {"name": options.transport}, "client": {"socket_mode": "0666"}})
        limit = ("prlimit", f"--nofile={self.OPEN_FILES}:{self.OPEN_FILES}", "--")
        self.daemons = [Daemon(machine, directory, prefix=limit, config=merged(config, {"metrics": {
            "address": machine.address, "port": METRICS_PORT}})) for machine in self.machines]
        self.bystander = Bystander(self.daemons, options.pace)

    def say(self, text):
        self.trace.append(f"{time.monotonic() - self.began:7.2f} s  {text}")
        print(self.trace[-1], flush=True)

    # One round

    def round(self, number, victim):
        draw = random.Random(f"{self.options.seed}-{number}")
        # Each deed once, in an order of its own, before any comes again.
        deck = list(DEEDS)
        random.Random(f"{self.options.seed}-deck-{number // len(deck)}").shuffle(deck)
        deed = DEEDS[deck[number % len(deck)]](self, victim, draw)
        self.say(f"round {number}: {deed.text()}; ranks on machines {victim.places}")
        self.counts[type(deed).__name__] += 1
        victim.step()
        if deed.harmless:
            self.endure(deed, victim)
        else:
            backdrop = draw.choice(BACKDROPS)(self, victim, draw) if draw.random() < 0.4 else None
            self.survive(deed, victim, draw, backdrop)
        self.look_at_everybody()

    def endure(self, deed, victim):
        """Nobody is told anything while the deed lasts, and all is well afterwards."""
        deed.begin()
        failed = []

        def heal():
            try:
                deed.end()
            except Exception as error:  # of a thread nobody would hear
                failed.append(error)
        healing = threading.Timer(deed.seconds, heal)
        healing.start()
        try:
            while healing.is_alive():
                victim.step()
        finally:
            healing.join()
        if failed:
            raise AssertionError(f"{deed.text()}: {failed[0]!r}") from failed[0]
        deed.check()
        victim.step()

    def survive(self, deed, victim, draw, backdrop=None):
        if backdrop:
            self.say(f"  meanwhile: {backdrop.text()}")
            backdrop.begin()
        victim.begin_step()
        time.sleep(draw.uniform(0, 0.02))
        at = deed.begin()
        told = [None if rank in deed.dead else each.receive(deed.limit_s + 15)
                for rank, each in enumerate(victim.job.ranks)]
        if all(answer is None or answer.ok for answer in told):  # the step had been made before
            victim.next_step += 1
            told = self.next_answers(deed, victim)
        for rank, answer in enumerate(told):
            if answer is not None:
                self.judge(deed, rank, answer, at)
        if backdrop:
            backdrop.end()
        deed.end()
        victim.replace_lost(told)
        back = time.monotonic()
        victim.meet()
        self.met_s[type(deed).__name__].append(time.monotonic() - back)
        victim.step()
        seconds = time.monotonic() - back
        self.again_s[type(deed).__name__].append(seconds)
        if seconds > MEET_S + BUSY_S:
            raise Violation(f"running again after {seconds:.1f} s")

    @staticmethod
    def next_answers(deed, victim):
        living = [rank for rank in range(len(victim.places)) if rank not in deed.dead]
        told = [None] * len(victim.places)
        for rank in living:
            each = victim.job.ranks[rank]
            for words in (("submit", victim.comms[rank], victim.next_step, 0), ("end", victim.comms[rank], victim.next_step),
                          ("wait", victim.comms[rank], victim.next_step)):
                each.send(*words)
        for rank in living:
            answers = [victim.job.ranks[rank].receive(deed.limit_s + 15) for _ in range(3)]
            told[rank] = next((answer for answer in answers if not answer.ok), answers[-1])
        return told

    def judge(self, deed, rank, answer, at):
        status, text, limit_s = deed.tells(rank)
        seconds = answer.ended - at
        if answer.ok:  # the step was made here; this rank hears of the deed with the next
            return
        self.told_s[type(deed).__name__, answer.status].append(seconds)
        if answer.status != status or not re.search(text, answer.text):
            raise Violation(f"rank {rank} was told {answer.status}: {answer.text}; not {status} with '{text}'")
        if seconds > limit_s + BUSY_S:
            raise Violation(f"rank {rank} was told after {seconds:.1f} s: {answer.text}")

    def look_at_everybody(self):
        for daemon in self.daemons:
            if daemon.process.poll() is not None:
                raise Violation(f"the daemon on machine {daemon.machine.index} ended with {daemon.process.returncode}")
        if self.bystander.problem:
            raise Violation(self.bystander.problem)

    # All of them

    def held(self):
        settle(self.daemons, LINGER_S + 1)
        return [Holding(daemon) for daemon in self.daemons]

    def run(self):
        warm = Victim(self, [0, 1, 2], "warm")
        warm.step()
        warm.close()
        self.bystander.start()
        before = self.held()
        number, end, victim = self.options.first, time.monotonic() + self.options.seconds, None
        while time.monotonic() < end:
            if victim is None or number % ROUNDS_PER_JOB == 0:
                if victim:
                    victim.close()
                places = random.Random(f"{self.options.seed}-job-{number // ROUNDS_PER_JOB}").choice(PLACES)
                victim = Victim(self, places, f"victim{number // ROUNDS_PER_JOB}")
            self.round(number, victim)
            number += 1
        victim.close()
        self.compare(before, self.held())
        self.bystander.end()
        self.report()

    def compare(self, before, after):
        for daemon, was, now in zip(self.daemons, before, after):
            self.say(f"machine {daemon.machine.index}: {was} before, {now} after")
            more_memory = now.memory_bytes > was.memory_bytes + MORE_BYTES
            if more_memory or now.descriptors > was.descriptors + self.spare() or now.links > was.links:
                raise Violation(f"machine {daemon.machine.index} holds {now}; before it was {was}")

    def spare(self):
        """Connections that may wait for the next link; UCX keeps those of as many links as there were at once."""
        return 2 if self.options.transport == "tcp" else 40

    def report(self):
        deeds = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        print(f"figure: {sum(self.counts.values())} rounds: {deeds}", flush=True)
        for (name, status), seconds in sorted(self.told_s.items()):
            print(f"figure: {status} after {name}: {quantiles(seconds)}")
        for name, seconds in sorted(self.again_s.items()):
            print(f"figure: met again after {name}: {quantiles(self.met_s[name])}; with a step that was checked: "
                  f"{quantiles(seconds)}")
        print(f"figure: bystander: {self.bystander.steps} steps, all exact: {quantiles(self.bystander.times_s)}, "
              f"the longest {max(self.bystander.times_s):.3f} s", flush=True)

    def close(self):
        self.machines.close()


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def quantiles(values):
    p50, p99 = (1000 * quantile(values, share) for share in (0.5, 0.99))
    digits = 0 if p50 >= 10 else 1
    return f"p50 {p50:.{digits}f} ms, p99 {p99:.{digits}f} ms of {len(values)}"


def common_options(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between two steps of the bystander")
    return parser


def parse(arguments=None):
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--first", type=int, default=0, help="the round to begin with")
    return parser.parse_args(arguments)


def main(options, kind=Nemesis):
    """Returns the number of violations: none, or the one that ended it."""
    with tempfile.TemporaryDirectory(prefix="cgx-nemesis-") as directory:
        os.chmod(directory, 0o755)
        nemesis = kind(options, directory)
        try:
            return nemesis.run() or 0
        except (Violation, AssertionError) as problem:
            print(f"VIOLATION, seed {options.seed}: {problem}\n  " + "\n  ".join(nemesis.trace[-40:]))
            for daemon in nemesis.daemons:
                print(f"  log of machine {daemon.machine.index}:\n    " + "\n    ".join(daemon.log().splitlines()[-12:]),
                      flush=True)
            return 1
        finally:
            nemesis.close()


if __name__ == "__main__":
    if not isolation_possible():
        sys.exit("needs root: machines are network namespaces")
    sys.exit(main(parse()))

"""One kind of trouble many times over, beside a checked job, and what came of it against the bars of RESULTS.md.

usage: trials.py WHAT... [--count N] [--seed S] [--transport NAME] [--pace S]

rank, daemon, stop, cut, down   a deed of nemesis.py: who is told what, how soon, of whom; how soon all run again
jobs                            short jobs over two machines: what daemons hold, and the bystander's steps, afterwards
junk, half-open, replay         strangers at the ports of the tcp transport, while jobs meet
flip                            bits changed on the way between two daemons of a job that goes on

A violation is printed with its trial; the run goes on with a new job. The last lines say what was measured and how many
violations there were. Needs root: machines are network namespaces.
"""

import os
import random
import re
import subprocess
import sys
import threading
import time

import troubles
from doors_test import listeners
from endurance_test import short_job
from machines import isolation_possible
from nemesis import LINGER_S, METRICS_PORT, PLACES, ROUNDS_PER_JOB, Nemesis, Victim, Violation
from nemesis import common_options, main, quantile, quantiles
from nemesis_deeds import FAULTY, PROCESS_S, SILENCE_S, Cut, Down, KillDaemon, KillRank, StopDaemon
from use import Holding, Use, settle

INTRUDERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "intruders.py")
DEEDS = {"rank": KillRank, "daemon": KillDaemon, "stop": StopDaemon, "cut": Cut, "down": Down}
TOLD_S = {"rank": PROCESS_S, "daemon": PROCESS_S, "stop": SILENCE_S, "cut": SILENCE_S, "down": SILENCE_S}  # p99
MET_S = (0.3, 1.0)    # p50, p99
NOTICED_S = 1.0       # strangers are counted
STEP_RATIO = 1.5      # a quick step of the bystander after many jobs, to one before
SAMPLE, QUICK = 300, 0.1  # steps of the bystander; the share of quick ones, which others' work on the machine has spared
FLIP_SHARE, FLIPS_PER_S, FLIP_SLICE_S = 0.2, 50, 10.0  # of the packets with data; about so many; at once


class Trials(Nemesis):
    def __init__(self, options, directory):
        super().__init__(options, directory)
        self.violations = []

    def violate(self, text):
        self.violations.append(text)
        self.say(f"VIOLATION, seed {self.options.seed}: {text}")

    def run(self):
        """Returns the number of violations."""
        warm = Victim(self, [0, 1, 2], "warm")
        warm.step()
        warm.close()
        before = self.held()
        self.bystander.start()
        for self.what in self.options.what:
            {"jobs": self.jobs, "flip": self.flips, **dict.fromkeys(DEEDS, self.faults)}.get(
                self.what, self.strangers)(self.options.count)
        self.check(lambda: self.compare(before, self.held()))
        self.check(self.look_at_everybody)
        self.bystander.end()
        self.report()
        print(f"figure: {', '.join(self.options.what)}: {len(self.violations)} violations", flush=True)
        return len(self.violations)

    def check(self, what):
        try:
            what()
        except (Violation, AssertionError, OSError) as problem:
            self.violate(str(problem))

    def expect(self, what, value, limit):
        self.say(f"{what}: {value:.3f} (limit {limit:g})")
        if value > limit:
            self.violate(f"{what}: {value:.3f}, not {limit:g} at most")

    # Deeds

    def faults(self, count):
        kind, victim = DEEDS[self.what], None
        for number in range(count):
            if victim and number % ROUNDS_PER_JOB == 0:
                victim.close()
                victim = None
            draw = random.Random(f"{self.options.seed}-{number}")
            victim = self.trial(kind, number, draw, victim)
            if number % 25 == 24:
                self.say(f"{number + 1} trials; machine 0: {Use(self.daemons[0])}")
        if victim:
            victim.close()
        name = kind.__name__
        for (deed, status), seconds in sorted(self.told_s.items()):
            if deed == name:
                self.expect(f"{status} after {name}, p99", quantile(seconds, 0.99), TOLD_S[self.what])
        for share, limit in zip((0.5, 0.99), MET_S if self.met_s[name] else ()):
            self.expect(f"met again, p{100 * share:.0f}", quantile(self.met_s[name], share), limit)

    def trial(self, kind, number, draw, victim):
        """Returns the job for the next one: none after a violation."""
        deed = None
        try:
            victim = victim or Victim(self, draw.choice(PLACES), f"victim{number}")
            deed = kind(self, victim, draw)
            self.counts[kind.__name__] += 1
            victim.step()
            self.survive(deed, victim, draw)
            self.look_at_everybody()
            return victim
        except (Violation, AssertionError) as problem:
            self.violate(f"trial {number}, {deed.text() if deed else 'meeting'}, ranks on machines "
                         f"{victim.places if victim else '?'}: {problem}")
        if deed:
            deed.end()
        if victim:
            victim.job.close()
        return None

    # Jobs

    def jobs(self, count):
        daemons = self.daemons[:2]
        self.steps_alone()  # the first ones after the start are slower
        before, steps_before = [Holding(daemon) for daemon in daemons], self.steps_alone()
        for number in range(count):
            self.check(lambda: short_job(daemons, number))
            if number % 50 == 49:
                self.say(f"{number + 1} jobs; machine 0: {Use(daemons[0])}")
        settle(daemons, LINGER_S + 1)
        after, steps_after = [Holding(daemon) for daemon in daemons], self.steps_alone()
        for was, now in zip(before, after):
            print(f"figure: machine {now.index}: {was} before {count} jobs, {now} after", flush=True)
            if now.links > was.links:
                self.violate(f"machine {now.index} holds {now}; before it was {was}")
        self.compare(before, after)
        print(f"figure: the bystander's step before: {quantiles(steps_before)}; after: {quantiles(steps_after)}", flush=True)
        quick = [quantile(steps, QUICK) for steps in (steps_before, steps_after)]
        self.say(f"a quick step of the bystander: {1e6 * quick[0]:.0f} us before, {1e6 * quick[1]:.0f} us after")
        self.expect("after to before", quick[1] / quick[0], STEP_RATIO)

    def steps_alone(self):
        """How long its next steps take."""
        first = self.bystander.steps
        while self.bystander.steps < first + SAMPLE:
            self.look_at_everybody()
            time.sleep(0.05)
        return self.bystander.times_s[first:first + SAMPLE]

    # Strangers

    @staticmethod
    def data_ports(daemon):
        mesh = int(daemon.config["mesh"]["listen"].rsplit(":", 1)[1])
        return [port for _, port in listeners(daemon) if port not in (mesh, METRICS_PORT)]

    def overheard(self):
        """What went to the tcp port of machine 0 or 1 for a job that goes on: the machine, its port, connections in hex."""
        ports = {port: index for index in (0, 1) for port in self.data_ports(self.daemons[index])}
        tap = self.machines[1].start([sys.executable, INTRUDERS, "listen", "eth0", *map(str, ports)],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert tap.stdout.readline() == "ready\n"
        self.watched = Victim(self, [0, 1], f"watched-{self.what}")
        for _ in range(5):
            self.watched.step()
        lines = [line.split() for line in tap.communicate()[0].splitlines()]
        assert lines, "nobody was heard to dial"
        port = int(lines[0][0])
        return ports[port], port, "\n".join(stream for at, stream in lines if int(at) == port)

    def strangers(self, count):
        """From the machine beside it and from a third one; jobs meet and the overheard one goes on meanwhile."""
        index, port, heard = self.overheard()
        daemon = self.daemons[index]
        before = daemon.counters()
        began = time.monotonic()
        working = [threading.Thread(target=self.intrude, args=(machine, daemon, port, heard, count // 2))
                   for machine in range(3) if machine != index]
        for each in working:
            each.start()
        self.answered, meetings = 0, []
        while any(each.is_alive() for each in working):
            self.check(lambda: meetings.append(self.meet_meanwhile(len(meetings))))
            self.check(self.watched.step)
        seconds = time.monotonic() - began
        self.wait_for_counter(daemon, before, count)
        self.check(self.watched.step)
        self.watched.close()
        print(f"figure: {self.what}: {self.answered} of {count} in {seconds:.0f} s were let go, {self.refused} counted; jobs met "
              f"and made a step meanwhile: {quantiles(meetings)}", flush=True)

    def intrude(self, machine, daemon, port, heard, count):
        seed = f"{self.options.seed}{machine}"
        done = self.machines[machine].run([sys.executable, INTRUDERS, self.what, daemon.machine.address, str(port),
                                           str(count), seed], input=heard, capture_output=True, text=True)
        if done.returncode != 0:
            return self.violate(f"the strangers on machine {machine} failed: {done.stderr[-300:]}")
        self.answered += int(done.stdout)
        if int(done.stdout) != count:
            self.violate(f"only {done.stdout.strip()} of {count} strangers on machine {machine} got an answer")
        return None

    def meet_meanwhile(self, number):
        began = time.monotonic()
        job = Victim(self, [1, 0], f"meanwhile-{self.what}{number}")
        job.step()
        job.close()
        return time.monotonic() - began

    def wait_for_counter(self, daemon, before, count):
        deadline = time.monotonic() + NOTICED_S
        # Those that said nothing are shown out without being counted.
        least = 0.4 * count if self.what == "half-open" else count
        while True:
            self.refused = daemon.counters()["connections_refused"] - before["connections_refused"]
            if self.refused >= least:
                return
            if time.monotonic() > deadline:
                return self.violate(f"{self.refused} connections were counted as refused, not {least:g}")
            time.sleep(0.05)

    # Flipped bits

    def flips(self, count):
        """On the way to machine 2, where the bystander has none. A link may end by them, if it is named."""
        places = [0, FAULTY]
        ports = [port for place in places for port in self.data_ports(self.daemons[place])]
        victim, done, steps, named = Victim(self, places, "flipped"), 0, [], []
        broken = self.connections_broken(places)
        while done < count and len(self.violations) < 5:
            slice_s = min(FLIP_SLICE_S, 1 + (count - done) / FLIPS_PER_S)
            end, seed = time.monotonic() + slice_s, self.options.seed + done
            with troubles.lossy(self.machines[FAULTY], FLIP_SHARE, seed, flip_ports=ports) as spoilt:
                while victim and time.monotonic() < end:
                    victim = self.flipped_step(victim, steps, named)
            victim = victim or Victim(self, places, f"flipped{done}")
            done += sum(spoilt)
            self.check(self.look_at_everybody)
            self.say(f"{done} bits flipped")
        self.check(victim.step)
        victim.close()
        print(f"figure: {done} bits flipped in {len(steps)} steps, all exact, the longest {max(steps, default=0):.2f} s; "
              f"{self.connections_broken(places) - broken} connections broken; {len(named)} links ended, their peer named "
              f"after {max(named, default=0):.2f} s at most", flush=True)

    def flipped_step(self, victim, steps, named):
        """Returns the job, if its link has survived."""
        began = time.monotonic()
        try:
            victim.step()
            steps.append(time.monotonic() - began)
            return victim
        except AssertionError as problem:
            if re.search(r"rank (\d): wait: PEER_LOST: .* with rank (?!\1)\d", str(problem)):
                named.append(time.monotonic() - began)
                self.say(f"ended by a flip: {problem}")
            else:
                self.violate(str(problem))
        victim.job.close()
        return None

    def connections_broken(self, places):
        counters = [self.daemons[place].counters() for place in places]
        return sum(each["connections_lost"] + each["connections_refused"] for each in counters)


def parse(arguments=None):
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=[*DEEDS, "jobs", "junk", "half-open", "replay", "flip"])
    parser.add_argument("--count", type=int, default=10)
    parser.set_defaults(pace=0.02)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    if not isolation_possible():
        sys.exit("needs root: machines are network namespaces")
    sys.exit(min(main(parse(), Trials), 1))

"""What nemesis.py does to a job and its daemons, and what may follow from it.

To add one: a class in DEEDS. `begin` does it and returns when, `end` undoes it. Where it is `harmless` nobody may notice
for `seconds`; else `tells` says what each living rank is told, of whom, and how soon.
"""

import select
import signal
import subprocess
import sys
import time

from daemons import freeze
from doors_test import listeners
from stress import policy_words
from use import Use

BUSY_S = 1.5       # what a busy machine may add
PROCESS_S = 1.0    # the death of a process is known everywhere
SILENCE_S = 4.5    # peer_lost_ms and a heartbeat
OUTAGE_S = 3.0     # of a network: tcp stands it (outages_test.py); peers are lost after 4 s
FAULTY = 2         # the machine that deeds to machines are done to

# Opens connections that say little until somebody has no descriptor left, and keeps them until its input ends.
CROWD = """
import socket, sys
links = []
for word in sys.argv[1:]:
    for _ in range(400):
        link = socket.socket(socket.AF_UNIX if "/" in word else socket.AF_INET,
                             socket.SOCK_SEQPACKET if word.endswith("cgxd.sock") else socket.SOCK_STREAM)
        link.settimeout(0.2)
        try:
            link.connect(word if "/" in word else (word.rsplit(":", 1)[0], int(word.rsplit(":", 1)[1])))
            link.send(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\4\\0\\0\\0\\0\\0")
        except OSError:
            break
        links.append(link)
print(len(links), flush=True)
sys.stdin.read()
"""

# Says junk to every address again and again until its input ends.
BABBLE = """
import random, select, socket, sys
chance = random.Random(int(sys.argv[1]))
starts = [b"", b"cgxtcp/1", b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", b"\\x16\\x03\\x01", b"GET /", b"CGXS"]
said = 0
while not select.select([sys.stdin], [], [], 0.002)[0]:
    word = chance.choice(sys.argv[2:])
    try:
        with socket.socket(socket.AF_UNIX if "/" in word else socket.AF_INET,
                           socket.SOCK_SEQPACKET if word.endswith("cgxd.sock") else socket.SOCK_STREAM) as link:
            link.settimeout(0.2)
            link.connect(word if "/" in word else (word.rsplit(":", 1)[0], int(word.rsplit(":", 1)[1])))
            link.send(chance.choice(starts) + chance.randbytes(chance.randrange(300)))
            said += 1
            if said == 1:
                print("begun", flush=True)
    except OSError:
        pass
print(said, flush=True)
"""


class Deed:
    harmless = False
    dead = ()       # ranks without an answer
    limit_s = SILENCE_S
    longest_s = 2.5  # of what is harmless

    def __init__(self, nemesis, victim, draw):
        self.nemesis, self.victim, self.draw = nemesis, victim, draw
        self.seconds = draw.uniform(0.2, self.longest_s)
        self.choose()

    def choose(self):
        pass

    def text(self):
        return type(self).__name__ + (f" for {self.seconds:.1f} s" if self.harmless else "")

    def begin(self):
        at = time.monotonic()
        self.do()
        return at

    def end(self):
        pass

    def check(self):
        pass

    def daemon(self):
        return self.nemesis.daemons[FAULTY]

    def there(self):
        """The ranks on the faulty machine."""
        return [rank for rank, place in enumerate(self.victim.places) if place == FAULTY]


class KillRank(Deed):
    limit_s = PROCESS_S

    def choose(self):
        self.dead = (self.draw.randrange(len(self.victim.places)),)

    def text(self):
        return f"kill rank {self.dead[0]}"

    def do(self):
        self.victim.job.ranks[self.dead[0]].kill()

    def tells(self, rank):
        return "RANK_LOST", f"rank {self.dead[0]} ", PROCESS_S


class StopRank(Deed):
    harmless = True

    def choose(self):
        self.rank = self.draw.randrange(len(self.victim.places))

    def do(self):
        self.victim.job.ranks[self.rank].process.send_signal(signal.SIGSTOP)

    def end(self):
        self.victim.job.ranks[self.rank].process.send_signal(signal.SIGCONT)


class LostMachine(Deed):
    """The others lose the machine, its ranks whatever the deed takes from them."""

    def tells(self, rank):
        if rank in self.there():
            return self.tells_there()
        return "PEER_LOST", "|".join(rf"ranks? [\d, ]*\b{r}\b" for r in self.there()), self.limit_s


class KillDaemon(LostMachine):
    limit_s = SILENCE_S

    def do(self):
        self.daemon().process.kill()
        self.daemon().process.wait()

    def end(self):
        self.daemon().start()

    def tells_there(self):
        return "DAEMON_LOST", "", PROCESS_S


class StopDaemon(LostMachine):
    """Until everybody has been told."""

    def do(self):
        freeze(self.daemon().process)

    def end(self):
        self.daemon().process.send_signal(signal.SIGCONT)

    def tells_there(self):
        return "DAEMON_LOST", "", SILENCE_S


class PauseDaemon(StopDaemon):
    harmless = True


class Cut(LostMachine):
    """Packets to and from the machine are lost, and nobody is told."""

    def do(self):
        self.nemesis.machines.lose(self.daemon().machine, 1)

    def end(self):
        self.nemesis.machines.lose(self.daemon().machine, 0)

    def tells_there(self):
        others = [rank for rank in range(len(self.victim.places)) if rank not in self.there()]
        return "PEER_LOST", "|".join(rf"ranks? [\d, ]*\b{r}\b" for r in others), SILENCE_S


class Gap(Cut):
    """A cut that ends before anybody is given up."""

    harmless = True
    longest_s = OUTAGE_S


class Loss(Cut):
    harmless = True

    def choose(self):
        self.share = self.draw.choice((0.01, 0.05, 0.2))

    def text(self):
        return f"lose {self.share:.0%} of the packets for {self.seconds:.1f} s"

    def do(self):
        self.nemesis.machines.lose(self.daemon().machine, self.share)


class Down(Cut):
    """The interface is down: the machine itself notices."""

    def do(self):
        self.set("down")

    def end(self):
        """Until the others can be reached: a question for an address, lost as the interface came up, is repeated after 1 s."""
        self.set("up")
        deadline = time.monotonic() + 3
        while "INCOMPLETE" in self.daemon().machine.run(["ip", "neigh"], capture_output=True, text=True).stdout:
            assert time.monotonic() < deadline, "the network of the test has not come back"
            time.sleep(0.01)

    def set(self, state):
        machine = self.daemon().machine
        machine.run(["ip", "link", "set", machine.interface, state], check=True)


class Flap(Down):
    harmless = True
    longest_s = OUTAGE_S


class Descriptors(Deed):
    """Connections from another machine and from its own users take all descriptors of a daemon."""

    harmless = True

    def choose(self):
        self.machine = self.draw.randrange(3)

    def text(self):
        return f"take the descriptors of machine {self.machine} for {self.seconds:.1f} s"

    def do(self):
        victim = self.nemesis.daemons[self.machine]
        here = self.nemesis.machines[self.machine]
        words = [f"{address}:{port}" for address, port in listeners(victim)] + [victim.control, victim.socket]
        self.crowd = here.start([sys.executable, "-c", CROWD, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.crowd.stdout.readline()
        deadline = time.monotonic() + 2
        while True:
            self.taken = Use(victim).descriptors
            if self.enough() or time.monotonic() > deadline:
                break
            time.sleep(0.01)

    def enough(self):
        return self.taken > self.nemesis.OPEN_FILES * 3 // 4

    def end(self):
        self.crowd.communicate(b"", timeout=10)

    def check(self):
        assert self.enough(), f"only {self.taken} of {self.nemesis.OPEN_FILES} descriptors were taken"


class Junk(Deed):
    harmless = True

    def do(self):
        daemons = self.nemesis.daemons
        self.babblers = []
        for daemon in daemons:  # each from the machine beside it, and from its own
            words = [f"{address}:{port}" for address, port in listeners(daemon)]
            words += [daemon.control, daemon.socket]
            machine = self.nemesis.machines[(daemon.machine.index + 1) % len(daemons)]
            self.babblers.append(machine.start([sys.executable, "-c", BABBLE, str(self.draw.randrange(1 << 30)), *words],
                                               stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for babbler in self.babblers:
            assert select.select([babbler.stdout], [], [], 10)[0], "nobody hears the junk"
            babbler.stdout.readline()

    def end(self):
        self.said = [int(babbler.communicate(b"", timeout=10)[0]) for babbler in self.babblers]

    def check(self):
        assert all(self.said), f"nobody heard the junk: {self.said}"


class Policies(Deed):
    harmless = True

    def do(self):
        for _ in range(3):
            daemon = self.nemesis.daemons[self.draw.choice(self.victim.places)]
            done = daemon.control_tool("--timeout", "20", "policy", "apply", "-j", self.victim.job.name, "-c", "grads",
                                       "--wait", "0", *policy_words(self.draw, raw=True), check=False)
            # BUSY: the change before is agreed, and no step has begun under it.
            known = ("SUPERSEDED", "not in force yet", "is being agreed on")
            assert done.returncode == 0 or any(text in done.stderr for text in known), done.stderr


DEEDS = {each.__name__: each for each in (KillRank, StopRank, KillDaemon, StopDaemon, PauseDaemon, Cut, Gap, Loss, Down,
                                          Flap, Descriptors, Junk, Policies)}
BACKDROPS = (Junk, Descriptors)

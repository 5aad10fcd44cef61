"""Random programs over the Python package on real daemons, until the time is over.

usage: stress.py [--seconds N] [--seed S] [--machines M] [--at-once J] [--deeds kill,leave,recommit] [--mode raw|lossy]
                 [--keep-going] [--daemon-build DIR]

Each job is one seed: 2 to 6 ranks on the daemons, one to three communicators driven by threads of their own, tables
of random tensors of all types, steps with absent tensors and dropped results, submitted by several threads, calls in
flight, forks, and policies applied all the while through random daemons. A deed happens to some jobs: a rank is killed,
leaves (closes its session) with calls under way, or registers more tensors and commits again. Every result is checked:
raw ones against the sum cgxd promises (sums.py), compressed ones for the same bits on all ranks. A job without a deed may
not see any error; with one, only those that follow from it. --daemon-build takes the daemons from another build folder,
e.g. build/asan (ninja -C build/asan cgxd cgxctl). The seed of a job replays it (threads and clocks vary).
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import sums
from daemons import Daemon, python_environment
from machines import Machines

CODECS = ("fp32", "fp16", "bf16", "maxmin:4,bucket=512", "maxmin:8,bucket=64", "maxmin:4,bucket=512,feedback",
          "maxmin:3,bucket=192,stochastic")
DEEDS = ("kill", "leave", "recommit")
# What the ranks that live on may be told after a deed.
ALLOWED = {"none": (), "recommit": (), "kill": ("RANK_LOST",), "leave": ("RANK_LOST",)}
# What they may be told, too, where not all ranks have met yet: by who comes when the others have given up, or where
# no daemon that is asked saw the rank die.
ALLOWED_MEETING = {"kill": ("TIMED_OUT",)}
# What an operator may be told while jobs come and go, beside what its ranks may be told.
OPERATOR_ALLOWED = ("OK", "NOT_FOUND", "NOT_COMMITTED", "BUSY", "SUPERSEDED", "CANCELLED")
RANK_S = 40.0  # a rank that has not ended by then hangs
COMM_S = 20.0  # time-out of the communicators


# What a seed means, the same in every process


class Plan:
    """What a job does. All ranks make the same one from the seed."""

    def __init__(self, seed, machines, deeds, mode=None):
        draw = random.Random(seed)
        self.seed = seed
        self.places = [draw.randrange(machines) for _ in range(draw.randint(2, 6))]
        self.raw = draw.random() < 0.6 if mode is None else mode == "raw"
        self.deed = draw.choice(deeds) if deeds and draw.random() < 0.5 else "none"
        self.victim = draw.randrange(len(self.places))
        self.after_s = draw.uniform(0.0, 1.5)
        self.comms = [CommPlan(draw, f"comm{i}", self) for i in range(draw.choice((1, 1, 2, 3)))]
        if self.deed == "leave":
            leaving = self.comms[0].rounds
            leaving.insert(draw.randrange(len(leaving) + 1), ("leave", draw.randint(0, 3)))

    def text(self):
        return (f"seed {self.seed}: ranks on machines {self.places}, {len(self.comms)} communicators, "
                f"{'raw' if self.raw else 'lossy'}, deed {self.deed}"
                + (f" of rank {self.victim}" if self.deed in ("kill", "leave") else ""))


class CommPlan:
    def __init__(self, draw, name, job):
        self.name = name
        self.tensors = [(draw.choice(tuple(sums.DTYPES)), draw.choice((sums.SUM, sums.AVG)), self.size(draw))
                        for _ in range(draw.randint(1, 12))]
        self.tensors = [(t, sums.SUM if t.startswith(("int", "uint")) else op, n) for t, op, n in self.tensors]
        self.rounds = [self.round(draw) for _ in range(draw.randint(10, 80))]
        if job.deed == "recommit":
            self.rounds.insert(draw.randrange(len(self.rounds) + 1), ("recommit", draw.randint(1, 3)))

    @staticmethod
    def size(draw):
        return draw.choice((0, 1, 3, 64, 65, draw.randrange(2000), draw.randrange(60_000)))

    def round(self, draw):
        kind = draw.choices(("step", "calls", "fork"), (10, 4, 0.3))[0]
        if kind == "step":
            absent = {(i, rank) for i in range(16) for rank in range(8) if draw.random() < 0.1}
            return "step", absent, draw.random() < 0.15, draw.randint(1, 3), draw.randint(0, 2)
        return (kind, draw.randint(1, 6)) if kind == "calls" else (kind,)


# A rank


class Store:
    """The ranks' meeting place: a folder."""

    def __init__(self, folder):
        self.folder = folder

    def path(self, key):
        return os.path.join(self.folder, hashlib.sha1(key.encode()).hexdigest())

    def put(self, key, value):
        partial = f"{self.path(key)}.{os.getpid()}.{threading.get_ident()}"
        with open(partial, "wb") as file:
            file.write(value)
        os.replace(partial, self.path(key))

    def get(self, key):
        try:
            with open(self.path(key), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None


class WrongBits(Exception):
    pass


def positive_zeros(values):
    """The sign of a zero is the same on all ranks, but not promised: with one machine nothing is added to +0.0."""
    if values.dtype == np.uint16:  # bf16
        return np.where(values == 0x8000, np.uint16(0), values)
    return values + values.dtype.type(0) if np.issubdtype(values.dtype, np.floating) else values


class Left(Exception):
    """This rank has closed its session, as planned."""


class CommRunner:
    """One communicator of one rank, from its first step to its last."""

    def __init__(self, rank, number):
        self.rank, self.plan, self.number = rank, rank.plan.comms[number], number
        self.tensors, self.arrays, self.results = [], [], {}
        self.step, self.calls, self.met = 0, 0, False

    def run(self):
        import cgx
        self.cgx = cgx
        session, job = self.rank.session, self.rank
        store = Store(job.folder)
        self.comm = session.communicator(self.plan.name, job.number, len(job.plan.places), store.put, store.get,
                                         timeout=COMM_S)
        self.met = True
        self.register(self.plan.tensors)
        for each in self.plan.rounds:
            self.rank.stop_if_leaving()
            getattr(self, "do_" + each[0])(*each[1:])
        self.comm.close()

    def register(self, tensors):
        for dtype, op, count in tensors:
            array = self.rank.session.empty(count, dtype)
            name = f"tensor{len(self.tensors)}"
            home = self.comm.register(name, array, ("sum", "avg")[op], dtype=dtype)
            self.tensors.append((dtype, op, count))
            self.arrays.append((home, array))
        self.comm.commit()

    def given(self, kind, number, index, rank):
        dtype, _, count = self.tensors[index] if kind == 0 else number[1]
        key = number if kind == 0 else number[0]
        return sums.data(dtype, (count,), self.rank.plan.seed % 2**32, self.number, kind, key, index, rank)

    # Rounds

    def do_step(self, absent, dropped, threads, calls):
        step, me = self.step, self.rank.number
        self.step += 1
        mine = [i for i in range(len(self.tensors)) if (i, me) not in absent]
        for index in mine:
            self.arrays[index][1][...] = self.given(0, step, index, me)
        order = random.Random(f"{self.rank.plan.seed}-{self.number}-{step}-{me}")
        order.shuffle(mine)
        submitters = [threading.Thread(target=self.submit, args=(step, mine[part::threads])) for part in range(threads)]
        for thread in submitters:
            thread.start()
        begun = [self.begin_call() for _ in range(calls)]
        for thread in submitters:
            thread.join()
        if self.rank.errors:
            raise self.rank.errors[0]
        self.comm.step_end(step)
        self.comm.wait(step)
        for index in range(len(self.tensors)):
            self.check_step(step, index, absent)
        self.comm.step_done(step, dropped)
        for call in begun:
            self.end_call(*call)

    def submit(self, step, indices):
        try:
            for index in indices:
                self.comm.submit(step, [self.arrays[index][0]])
        except Exception as error:
            self.rank.errors.append(error)

    def check_step(self, step, index, absent):
        ranks = range(len(self.rank.plan.places))
        if all((index, rank) in absent for rank in ranks):
            return
        dtype, op, count = self.tensors[index]
        got = self.arrays[index][1]
        if not self.rank.plan.raw and dtype.startswith(("fp", "bf")):
            self.results[f"{self.number}.{step}.{index}"] = hashlib.sha1(got.tobytes()).hexdigest()[:12]
            return
        zero = np.zeros(count, sums.DTYPES[dtype][1])
        given = [zero if (index, rank) in absent else self.given(0, step, index, rank) for rank in ranks]
        right = sums.expected(dtype, op, given, self.rank.plan.places)
        self.check(f"{self.plan.name} step {step} tensor {index} ({dtype}, {count})", got, right)

    def check(self, what, got, right):
        got, right = positive_zeros(got), positive_zeros(right)
        if got.tobytes() != right.tobytes():
            wrong = np.flatnonzero(got.view(np.uint8) != right.view(np.uint8))
            raise WrongBits(f"{what}: {len(wrong)} bytes differ, the first at {wrong[0]} of {got.nbytes}")

    def begin_call(self):
        number = self.calls
        self.calls += 1
        draw = random.Random(f"{self.rank.plan.seed}-{self.number}-call{number}")
        dtype = draw.choice(tuple(sums.DTYPES))
        op = sums.SUM if dtype.startswith(("int", "uint")) else draw.choice((sums.SUM, sums.AVG))
        what = (dtype, op, CommPlan.size(draw))
        array = self.rank.session.empty(what[2], dtype)
        array[...] = self.given(1, (number, what), 0, self.rank.number)
        return number, what, array, self.comm.allreduce_async(array, ("sum", "avg")[op], dtype=dtype)

    def end_call(self, number, what, array, call):
        call.wait()
        given = [self.given(1, (number, what), 0, rank) for rank in range(len(self.rank.plan.places))]
        right = sums.expected(what[0], what[1], given, self.rank.plan.places)
        self.check(f"{self.plan.name} call {number} ({what[0]}, {what[2]})", array, right)

    def do_calls(self, count):
        for call in [self.begin_call() for _ in range(count)]:
            self.end_call(*call)

    def do_recommit(self, count):
        draw = random.Random(f"{self.rank.plan.seed}-{self.number}-recommit")
        self.register([(draw.choice(("fp32", "fp16", "int32")), sums.SUM, CommPlan.size(draw)) for _ in range(count)])

    def do_fork(self):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for _, array in self.arrays:
                    array.sum()
                self.comm.commit()
            except self.cgx.ForkedError:
                code = 0
            finally:
                os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            raise WrongBits("a forked child was not told FORKED")

    def do_leave(self, calls):
        if self.rank.number != self.rank.plan.victim:
            return
        begun = [self.begin_call() for _ in range(calls)]
        self.rank.leaving = True
        self.rank.leave(begun)


class RankProgram:
    def __init__(self, options):
        self.number, self.folder = options.rank, options.folder
        self.plan = Plan(options.seed, options.machines, options.deeds, options.mode)
        self.errors, self.leaving = [], False
        self.others = []

    def stop_if_leaving(self):
        if self.leaving:
            raise Left()
        if self.errors:
            raise self.errors[0]

    def leave(self, begun):
        """The other communicators' threads have stopped at their next round, or are in a wait that now ends."""
        self.session.close()
        del begun
        raise Left()

    def run(self):
        import cgx
        self.session = cgx.Session(job=f"stress{self.plan.seed}", arena_bytes=64 << 20)
        print(json.dumps({"event": "opened"}), flush=True)
        runners = [CommRunner(self, number) for number in range(len(self.plan.comms))]
        threads = [threading.Thread(target=self.guarded, args=(runner,), daemon=True) for runner in runners[1:]]
        for thread in threads:
            thread.start()
        self.guarded(runners[0])
        for thread in threads:
            thread.join(0 if self.leaving else RANK_S)
        answer = {"event": "left" if self.leaving else "done", "results": {}, "met": all(r.met for r in runners)}
        for runner in runners:
            answer["results"].update(runner.results)
            answer.setdefault("at", []).append([runner.step, runner.calls])
        if self.errors and not self.leaving:
            error = self.errors[0]
            status = getattr(error, "status", None) or type(error).__name__
            answer.update(event="error", status=status, text=str(error))
        print(json.dumps(answer), flush=True)
        os._exit(0)  # threads of a rank that has left may still be in a call

    def guarded(self, runner):
        try:
            runner.run()
        except Left:
            pass
        except Exception as error:
            self.errors.append(error)


# The driver


def policy_words(draw, raw):
    """Some policy, as `cgxctl policy apply` takes it."""
    changes = {"group_bytes": draw.choice(("4 KiB", "64 KiB", "1 MiB", "4 MiB")),
               "window": draw.randint(1, 8),
               "collective": draw.choice(("auto", "scatter", "allgather")),
               "codec": "fp32" if raw else draw.choice(CODECS)}
    return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


class Operator(threading.Thread):
    """Applies policies to a job until it is stopped."""

    def __init__(self, daemons, plan):
        super().__init__(daemon=True)
        self.daemons, self.plan, self.draw = daemons, plan, random.Random(plan.seed + 1)
        self.answers, self.texts = collections.Counter(), {}
        self.stopped = threading.Event()

    def run(self):
        while not self.stopped.wait(0.5):
            daemon = self.daemons[self.draw.choice(self.plan.places)]
            comm = self.draw.choice(self.plan.comms).name
            words = policy_words(self.draw, self.plan.raw)
            done = daemon.control_tool("--timeout", str(COMM_S), "policy", "apply", "-j", f"stress{self.plan.seed}",
                                       "-c", comm, "--lossy", *words, check=False)
            text = done.stderr.strip().removeprefix("cgxctl: ")
            status = "OK" if done.returncode == 0 else text.split(":", 1)[0]
            self.answers[status] += 1
            self.texts[status] = text


class Driver:
    def __init__(self, options, directory):
        self.options = options
        self.machines = Machines(options.machines, isolate=False)
        config = {"policy": {"codec": "fp32"}}
        self.daemons = [Daemon(machine, directory, config, build=options.daemon_build)
                        for machine in self.machines]
        self.directory = directory
        self.totals, self.answers = collections.Counter(), collections.Counter()

    def close(self):
        """The daemons end in order."""
        problems = []
        for daemon in self.daemons:
            if daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGTERM)
                status = daemon.process.wait(10)
            else:
                status = daemon.process.returncode
            if status != 0:
                problems.append(f"the daemon on machine {daemon.machine.index} ended with {status}")
        self.machines.close()
        return problems

    def start_rank(self, plan, rank, folder):
        daemon = self.daemons[plan.places[rank]]
        command = [sys.executable, os.path.abspath(__file__), "--rank", str(rank), "--seed", str(plan.seed),
                   "--machines", str(self.options.machines), "--folder", folder,
                   "--deeds", ",".join(self.options.deeds)]
        if self.options.mode:
            command += ["--mode", self.options.mode]
        here = os.path.dirname(os.path.abspath(__file__))
        environment = python_environment(CGX_SOCKET=daemon.socket)
        environment["PYTHONPATH"] += os.pathsep + here
        return daemon.machine.start(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_job(self, seed):
        """Returns what went wrong, as texts."""
        plan = Plan(seed, self.options.machines, self.options.deeds, self.options.mode)
        print(plan.text(), flush=True)
        with tempfile.TemporaryDirectory(prefix="cgx-stress-") as folder:
            ranks = [self.start_rank(plan, rank, folder) for rank in range(len(plan.places))]
            operator = Operator(self.daemons, plan)
            operator.start()
            if plan.deed == "kill":
                self.kill_later(ranks, plan)
            answers = [self.answer_of(process, time.monotonic() + RANK_S) for process in ranks]
            operator.stopped.set()
            operator.join()
        self.answers.update(operator.answers)
        problems = [f"the operator was told {status}: {operator.texts[status]}"
                    for status in operator.answers if status not in OPERATOR_ALLOWED + ALLOWED[plan.deed]]
        problems += self.judge(plan, answers)
        if problems:
            problems += [f"rank {rank}: {json.dumps({**answer, 'results': None})}"
                         for rank, answer in enumerate(answers)]
        return problems

    def kill_later(self, ranks, plan):
        select.select([ranks[plan.victim].stdout], [], [], RANK_S)  # until it has opened its session
        time.sleep(plan.after_s)
        ranks[plan.victim].kill()

    @staticmethod
    def answer_of(process, deadline):
        """The last line a rank said, or what kept it from saying one."""
        try:
            out, problem = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            out, problem = process.communicate()
            return {"event": "hang", "text": out.decode()[-300:]}
        lines = [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]
        if lines and lines[-1]["event"] != "opened":
            return lines[-1]
        return {"event": "died", "status": process.returncode, "text": problem.decode()[-600:]}

    def judge(self, plan, answers):
        problems = []
        for rank, answer in enumerate(answers):
            event = answer["event"]
            self.totals[event] += 1
            for steps, calls in answer.get("at", ()):
                self.totals["steps"] += steps
                self.totals["calls"] += calls
            if event == "error":
                self.totals[answer["status"]] += 1
            right = event in ("done", "left") or (event == "died" and plan.deed == "kill" and rank == plan.victim)
            allowed = ALLOWED[plan.deed] + (() if answer.get("met") else ALLOWED_MEETING.get(plan.deed, ()))
            if not right and not (event == "error" and answer["status"] in allowed):
                problems.append(f"rank {rank}: {event} {answer.get('status', '')} {answer.get('text', '')}")
        seen = {}
        for rank, answer in enumerate(answers):
            for key, value in answer.get("results", {}).items():
                if seen.setdefault(key, (rank, value))[1] != value:
                    problems.append(f"ranks {seen[key][0]} and {rank} hold different results of {key}")
        return problems

    def run(self):
        seed, end, failures = self.options.seed, time.monotonic() + self.options.seconds, 0
        while time.monotonic() < end and (failures == 0 or self.options.keep_going):
            seeds = range(seed, seed + self.options.at_once)
            with concurrent.futures.ThreadPoolExecutor(len(seeds)) as pool:
                found = list(pool.map(self.run_job, seeds))
            self.totals["jobs"] += len(seeds)
            seed += len(seeds)
            failures += self.report(seeds, found)
        print(f"figure: {dict(self.totals)}; operator: {dict(self.answers)}", flush=True)
        return failures

    def report(self, seeds, found):
        """Prints what went wrong in the jobs of these seeds; returns in how many."""
        for each, problems in zip(seeds, found):
            if problems:
                print(f"FAILED seed {each}:\n  " + "\n  ".join(problems), flush=True)
        dead = [daemon for daemon in self.daemons if daemon.process.poll() is not None]
        for daemon in dead:
            print(f"FAILED: the daemon on machine {daemon.machine.index} died ({daemon.process.returncode}) "
                  f"in one of the seeds {list(seeds)}", flush=True)
        if dead or any(found):
            for daemon in self.daemons:
                print(f"  log of machine {daemon.machine.index}:\n    " + "\n    ".join(daemon.log().splitlines()[-8:]),
                      flush=True)
        self.restart_dead()
        return max(len(dead), sum(1 for problems in found if problems))

    def restart_dead(self):
        for daemon in self.daemons:
            if daemon.process.poll() is not None:
                daemon.start()


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=2, help="jobs")
    parser.add_argument("--deeds", type=lambda text: [d for d in text.split(",") if d], default=list(DEEDS))
    parser.add_argument("--mode", choices=("raw", "lossy"))
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--daemon-build", metavar="DIR", type=os.path.abspath)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for deed in options.deeds:
        if deed not in DEEDS:
            parser.error(f"deed {deed!r} must be one of {', '.join(DEEDS)}")
    return options


def main(options):
    with tempfile.TemporaryDirectory(prefix="cgx-stress-") as directory:
        driver = Driver(options, directory)
        try:
            failures = driver.run()
        finally:
            problems = driver.close()
        for problem in problems:
            print(f"FAILED: {problem}", flush=True)
        return 1 if failures or problems else 0


if __name__ == "__main__":
    chosen = parse()
    sys.exit(RankProgram(chosen).run() if chosen.rank is not None else main(chosen))

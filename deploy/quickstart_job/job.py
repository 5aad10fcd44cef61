"""Runs train.py once on all machines, watches its lines and says what came of it."""

import json
import os
import queue
import subprocess
import threading
import time
from dataclasses import dataclass, field
from statistics import median

import daemons
from machines import end_processes

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"
TORCH_PORT = 29500
WARMUP_STEPS = 3     # left out of every median: first buckets, first page faults
SILENCE_MAX_S = 300  # a rank that says nothing for so long has failed
LAST_WORDS_S = 3  # how long the other ranks may still say why they end


@dataclass
class Outcome:
    """One run: per rank the lines it printed; bytes each machine sent per step."""

    steps: list = field(default_factory=list)        # of rank 0
    epochs: dict = field(default_factory=dict)       # rank -> epoch per step
    parameters: dict = field(default_factory=dict)   # step -> digests of all ranks
    final_loss: float = None
    wire_bytes_per_step: float = None

    def step_ms(self):
        return median(s["step_ms"] for s in self.steps[WARMUP_STEPS:])

    def exchange_ms(self):
        return median(s["exchange_ms"] for s in self.steps[WARMUP_STEPS:])

    def ranks_agree(self):
        return all(len(set(digests)) == 1 for digests in self.parameters.values())

    def switch_steps(self):
        """rank -> first step it ran under the last plan of the run."""
        return {rank: next(i for i, epoch in enumerate(epochs) if epoch == epochs[-1])
                for rank, epochs in sorted(self.epochs.items())}


class Job:
    """Starts the ranks; `run` returns the outcome or raises with the failing rank's words."""

    def __init__(self, machines, ranks_per_machine, exchange, steps, started=(), stop_after=None, check_step=0):
        self.machines, self.ranks_per_machine, self.exchange, self.steps = machines, ranks_per_machine, exchange, steps
        self.daemons = started
        self.last_step = stop_after or steps
        self.ranks = len(machines) * ranks_per_machine
        self.arguments = ["--exchange", exchange, "--steps", str(steps), "--check-step", str(check_step),
                          "--ranks-per-machine", str(ranks_per_machine)]
        if stop_after:
            self.arguments += ["--stop-after", str(stop_after)]
        self.lines = queue.Queue()
        self.processes = []

    def _start_rank(self, rank):
        machine = self.machines[rank // self.ranks_per_machine]
        environment = daemons.python_environment(
            RANK=str(rank), WORLD_SIZE=str(self.ranks), MASTER_ADDR=self.machines[0].address,
            MASTER_PORT=str(TORCH_PORT), GLOO_SOCKET_IFNAME=machine.interface, OMP_NUM_THREADS="1",
            OPENBLAS_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        if self.daemons:
            environment["CGX_SOCKET"] = self.daemons[machine.index].socket
        process = machine.start([PYTHON, os.path.join(HERE, "train.py"), *self.arguments], env=environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.processes.append(process)
        threading.Thread(target=self._read, args=(rank, process), daemon=True).start()

    def _read(self, rank, process):
        errors = []
        watch = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)
        watch.start()
        for line in process.stdout:
            if line.startswith("{"):
                self.lines.put((rank, json.loads(line)))
        watch.join()
        self.lines.put((rank, {"exit": process.wait(), "words": "".join(errors[-40:])}))

    def run(self, on_step=lambda step: None):
        """on_step(line of rank 0) is called as steps finish."""
        outcome, running, marks = Outcome(), self.ranks, {}
        for rank in range(self.ranks):
            self._start_rank(rank)
        try:
            while running:
                rank, line = self.lines.get(timeout=SILENCE_MAX_S)
                if line.get("exit", 0):
                    raise RuntimeError(self._last_words(rank, line))
                running -= "exit" in line
                self._take(outcome, rank, line, marks)
                if rank == 0 and "step" in line:
                    on_step(line)
        except queue.Empty:
            raise RuntimeError(f"{self.exchange}: no rank said anything for {SILENCE_MAX_S} s") from None
        finally:
            end_processes(self.processes)
        if len(marks) == 2:
            (first, start), (last, end) = sorted(marks.items())
            outcome.wire_bytes_per_step = (end - start) / (last - first)
        return outcome

    def _last_words(self, rank, line):
        """What the failed rank said, and what the others say who fail because of it or before it."""
        words = f"{self.exchange}: rank {rank} ended with {line['exit']}:\n{line['words']}"
        end = time.monotonic() + LAST_WORDS_S
        try:
            while True:
                rank, line = self.lines.get(timeout=max(0, end - time.monotonic()))
                if line.get("exit", 0):
                    words += f"\nrank {rank} ended with {line['exit']}:\n{line['words']}"
        except queue.Empty:
            return words

    def _take(self, outcome, rank, line, marks):
        if "step" in line:
            outcome.epochs.setdefault(rank, []).append(line["epoch"])
            if rank == 0:
                outcome.steps.append(line)
                if line["step"] in (WARMUP_STEPS, self.last_step - 1):
                    sent = self._sent()
                    if sent is not None:
                        marks[line["step"]] = sent
        if "parameters" in line:
            outcome.parameters.setdefault(line["at_step"], []).append(line["parameters"])
        outcome.final_loss = line.get("final_loss", outcome.final_loss)

    def _sent(self):
        """Bytes machine 0 has sent: its interface's count, else its daemon's, else nothing is known."""
        counters = self.machines[0].counters()
        if counters:
            return counters["tx"]
        return self.daemons[0].counters()["encoded_bytes_sent"] if self.daemons else None

"""Two daemons and a trainer on each: programs of this folder that answer each line they are told with a line of JSON."""

import json
import os
import subprocess
import sys

import daemons

HERE = os.path.dirname(os.path.abspath(__file__))


class Trainers:
    def __init__(self, machines, folder, config, program, model, *words, port=None):
        """`folder` is new, or empty; `words` follow the model, the rank, their number and where they meet."""
        meeting = os.path.join(folder, "meeting")
        os.makedirs(meeting)
        self.daemons = [daemons.Daemon(machine, folder, config, port=port) for machine in machines]
        self.ranks = [machine.start([sys.executable, os.path.join(HERE, program), model, str(rank), "2", meeting, *words],
                                    text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                    env=daemons.python_environment(CGX_SOCKET=self.daemons[rank].socket))
                      for rank, machine in enumerate(machines)]
        for rank in self.ranks:
            if rank.stdout.readline() != "ready\n":
                raise RuntimeError(f"a trainer ended with {rank.wait()}")

    def say(self, command):
        """Every rank's answer."""
        for rank in self.ranks:
            rank.stdin.write(command + "\n")
            rank.stdin.flush()
        return [json.loads(rank.stdout.readline()) for rank in self.ranks]

    def job(self):
        return self.daemons[0].control_tool("jobs")["communicators"][0]

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
            rank.wait(20)
            rank.stdout.close()
        for daemon in self.daemons:
            daemon.process.terminate()
            daemon.process.wait(20)

"""The test machines themselves: namespaces reach each other, count bytes, obey their shape and leave nothing behind."""

import os
import signal
import subprocess
import sys
import unittest

import machines
from machines import Machines, isolation_possible

SERVER = """
import socket, sys, time
with socket.create_server((sys.argv[1], 7000)) as listener:
    print("ready", flush=True)
    peer, _ = listener.accept()
    total = 0
    while piece := peer.recv(1 << 20):
        total += len(piece)
print(total, time.monotonic())
"""
CLIENT = """
import socket, sys, time
content = bytes(int(sys.argv[2]))
print(time.monotonic())
with socket.create_connection((sys.argv[1], 7000)) as link:
    link.sendall(content)
"""


def transfer(pair, size):
    """Seconds for `size` bytes from machine 1 to machine 0, by their own clocks: without the start of Python."""
    server = pair[0].start([sys.executable, "-c", SERVER, pair[0].address], stdout=subprocess.PIPE, text=True)
    server.stdout.readline()
    began = pair[1].run([sys.executable, "-c", CLIENT, pair[0].address, str(size)], check=True, stdout=subprocess.PIPE,
                        text=True).stdout
    received, ended = server.communicate()[0].split()
    assert int(received) == size, received
    return float(ended) - float(began)


class AnyMachines(unittest.TestCase):
    def test_loopback_machines_reach_each_other_and_say_what_they_lack(self):
        with Machines(2, isolate=False) as pair:
            transfer(pair, 1 << 20)
            self.assertIsNone(pair[0].counters())
            self.assertIn("not shaped", pair.describe())

    def test_processes_end_with_their_machines(self):
        with Machines(1) as single:
            process = single[0].start(["sleep", "1000"])
        self.assertIsNotNone(process.poll())


@unittest.skipUnless(isolation_possible(), "network namespaces need root and iproute2")
class Namespaces(unittest.TestCase):
    def test_the_link_counts_what_crosses_it(self):
        with Machines(2) as pair:
            before = pair[1].counters()["tx"]
            transfer(pair, 10 << 20)
            sent = pair[1].counters()["tx"] - before
        self.assertGreater(sent, 10 << 20)
        self.assertLess(sent, 11 << 20)

    def test_a_shaped_link_is_as_fast_as_it_says(self):
        with Machines(2, shape="1gbit") as pair:
            rate = max(8 * (50 << 20) / transfer(pair, 50 << 20) / 1e9 for _ in range(3))
        self.assertLess(rate, 1.02)
        self.assertGreater(rate, 0.5)

    def test_machines_share_nothing_with_the_host(self):
        with Machines(1) as single:
            inside = single[0].run(["readlink", "/proc/self/ns/net"], capture_output=True, text=True).stdout.strip()
        self.assertNotEqual(inside, os.readlink("/proc/self/ns/net"))

    def test_an_interrupted_run_leaves_no_namespace(self):
        script = ("import sys, time; sys.path.insert(0, sys.argv[1]); import machines\n"
                  "m = machines.Machines(2); print('up', flush=True); time.sleep(100)")
        folder = os.path.dirname(os.path.abspath(machines.__file__))
        for number in (signal.SIGINT, signal.SIGTERM):
            run = subprocess.Popen([sys.executable, "-c", script, folder], stdout=subprocess.PIPE, text=True)
            run.stdout.readline()
            run.send_signal(number)
            run.wait(10)
            run.stdout.close()
            left = [n for n in os.listdir("/run/netns") if n.startswith(f"{machines.PREFIX}-{run.pid}-")]
            self.assertEqual(left, [])

    def test_what_a_killed_run_left_is_removed_by_the_next(self):
        gone = subprocess.Popen(["true"])
        gone.wait()
        stale = f"{machines.PREFIX}-{gone.pid}-m0"
        subprocess.run(["ip", "netns", "add", stale], check=True)
        with Machines(1):
            self.assertNotIn(stale, os.listdir("/run/netns"))


if __name__ == "__main__":
    unittest.main()

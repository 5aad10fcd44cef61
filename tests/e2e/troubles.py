"""What goes wrong on the way between machines of namespaces: each a context that ends it."""

import contextlib
import os
import subprocess
import sys

from machines import DROP, PASS

HERE = os.path.dirname(os.path.abspath(__file__))


def _ip(netns, *arguments):
    subprocess.run(["ip", "-n", netns, *arguments], check=True)


@contextlib.contextmanager
def away(machine):
    """Its interface is down: its own system knows, the others do not."""
    _ip(machine.netns, "link", "set", machine.interface, "down")
    try:
        yield
    finally:
        _ip(machine.netns, "link", "set", machine.interface, "up")


@contextlib.contextmanager
def silent(machine):
    """Nobody knows: what is sent arrives nowhere."""
    _ip(machine.switch, "link", "set", machine.port, "nomaster")
    try:
        yield
    finally:
        _ip(machine.switch, "link", "set", machine.port, "master", "br0")


@contextlib.contextmanager
def slow(machine, rate):
    """What is sent to it comes at this rate, and waits for as long as that takes."""
    device = ["tc", "-n", machine.switch, "qdisc"]
    subprocess.run([*device, "add", "dev", machine.port, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "10s"],
                   check=True)
    try:
        yield
    finally:
        subprocess.run([*device, "del", "dev", machine.port, "root"], check=True)


@contextlib.contextmanager
def closed(machine, port):
    """As by a firewall: what is sent to its TCP port arrives nowhere."""
    link = ["tc", "-n", machine.switch, "qdisc"]
    ipv4, tcp = f"40 0 0 12,21 0 5 {0x0800}", "48 0 0 23,21 0 3 6"
    code = f"8,{ipv4},{tcp},40 0 0 36,21 0 1 {port},6 0 0 {DROP},6 0 0 {PASS}"
    subprocess.run([*link, "add", "dev", machine.port, "clsact"], check=True)
    try:
        subprocess.run(["tc", "-n", machine.switch, "filter", "add", "dev", machine.port, "egress", "bpf", "da", "bytecode",
                        code], check=True)
        yield
    finally:
        subprocess.run([*link, "del", "dev", machine.port, "clsact"], check=True)


def send_small_packets(machine):
    """One segment a packet, from the next connection on: else `lossy` loses up to 64 KiB at a time."""
    _ip(machine.netns, "link", "set", machine.interface, "gso_max_segs", "1")


@contextlib.contextmanager
def lossy(machine, share, seed, flip_ports=()):
    """`share` of the packets to and from it are lost, or of the data of these ports a bit is flipped in so many.

    Yields a list in which, after it, stands how many that were.
    """
    with _carried_by("lossy_link.py", machine, share, seed, *flip_ports) as spoilt:
        yield spoilt


@contextlib.contextmanager
def distant(machine, round_trip_s):
    """Its packets, to and from it, take half of that each."""
    with _carried_by("slow_link.py", machine, round_trip_s / 2) as carried:
        yield carried


@contextlib.contextmanager
def _carried_by(program, machine, *words):
    """A program between it and its switch; in the list stands, afterwards, the number it said in the end."""
    number = []
    with silent(machine):
        _ip(machine.switch, "link", "add", "relay0", "type", "veth", "peer", "name", "relay1")
        for end in (("relay0", "up"), ("relay1", "up", "master", "br0")):
            _ip(machine.switch, "link", "set", *end)
        relay = subprocess.Popen(["nsenter", f"--net=/run/netns/{machine.switch}", "--", sys.executable,
                                  os.path.join(HERE, program), machine.port, "relay0", *map(str, words)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert relay.stdout.readline() == "ready\n"
            yield number
        finally:
            said = relay.communicate()[0]  # it ends with its standard input
            _ip(machine.switch, "link", "del", "relay0")
            print(said.strip(), flush=True)
            number.append(int(said.split()[0]))

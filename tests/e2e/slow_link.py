"""Carries packets between two interfaces of its namespace, each so much later, until its standard input ends.

usage: slow_link.py INTERFACE INTERFACE SECONDS
"""

import collections
import select
import sys
import time

from lossy_link import PACKET_BYTES, open_interface


def main():
    links, delay = [open_interface(name) for name in sys.argv[1:3]], float(sys.argv[3])
    carried, waiting = 0, collections.deque()  # (moment, link, packet), the earliest first
    print("ready", flush=True)
    while True:
        left = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        ready = select.select([*links, sys.stdin], [], [], left)[0]
        if sys.stdin in ready:
            break
        for link in ready:
            waiting.append((time.monotonic() + delay, links[link is links[0]], link.recv(PACKET_BYTES)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, link, packet = waiting.popleft()
            link.send(packet)
            carried += 1
    print(f"{carried} packets were late")


if __name__ == "__main__":
    main()

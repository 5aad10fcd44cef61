"""Carries packets between two interfaces of its namespace and spoils some, until its standard input ends.

usage: lossy_link.py INTERFACE INTERFACE SHARE SEED [PORT...]

`SHARE` of all packets are lost; with ports, in that share of the data from and to these a bit is flipped instead.
"""

import random
import select
import socket
import sys

from intruders import tcp_payload

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
ETH_P_ALL = 3
PACKET_BYTES = 70_000  # 64 KiB that the system has not cut yet, and what stands before them
VNET_HEADER_BYTES, NEEDS_SUM = 10, 1  # linux/virtio_net.h; summed by who receives it, so a flip is not TCP's to find
HEAD_BYTES = 56  # of a record of the tcp transport, or a greeting


def open_interface(name):
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)  # says how to cut and sum a packet that is not yet
    link.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    link.bind((name, ETH_P_ALL))
    return link


def flipped(packet, ports, chance):
    """The packet with one bit of its payload flipped, every second time near its beginning; None: not one of these."""
    content = tcp_payload(packet[VNET_HEADER_BYTES:])
    if not content or not content[3] or not packet[0] & NEEDS_SUM or not ports & set(content[:2]):
        return None
    length = len(content[3])
    limit = min(length, HEAD_BYTES) if chance.random() < 0.5 else length
    spoilt = bytearray(packet)
    spoilt[len(packet) - length + chance.randrange(limit)] ^= 1 << chance.randrange(8)
    return bytes(spoilt)


def main():
    links = [open_interface(name) for name in sys.argv[1:3]]
    share, chance = float(sys.argv[3]), random.Random(int(sys.argv[4]))
    ports = {int(word) for word in sys.argv[5:]}
    spoilt = carried = 0
    print("ready", flush=True)
    while True:
        ready = select.select([*links, sys.stdin], [], [])[0]
        if sys.stdin in ready:
            break
        for link in ready:
            packet = link.recv(PACKET_BYTES)
            other = links[link is links[0]]
            carried += 1
            if chance.random() >= share:
                other.send(packet)
            elif not ports:
                spoilt += 1
            else:
                changed = flipped(packet, ports, chance)
                spoilt += changed is not None
                other.send(changed or packet)
    print(f"{spoilt} packets of {carried} were {'changed' if ports else 'lost'}")


if __name__ == "__main__":
    main()

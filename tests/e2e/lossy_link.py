"""Carries packets between two interfaces of its namespace and loses some, until its standard input ends.

usage: lossy_link.py INTERFACE INTERFACE SHARE SEED
"""

import random
import select
import socket
import sys

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
ETH_P_ALL = 3
PACKET_BYTES = 70_000  # 64 KiB that the system has not cut yet, and what stands before them


def open_interface(name):
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)  # says how to cut and sum a packet that is not yet
    link.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    link.bind((name, ETH_P_ALL))
    return link


def main():
    links = [open_interface(name) for name in sys.argv[1:3]]
    share, chance = float(sys.argv[3]), random.Random(int(sys.argv[4]))
    lost = carried = 0
    print("ready", flush=True)
    while True:
        ready = select.select([*links, sys.stdin], [], [])[0]
        if sys.stdin in ready:
            break
        for link in ready:
            packet = link.recv(PACKET_BYTES)
            if chance.random() < share:
                lost += 1
            else:
                links[link is links[0]].send(packet)
                carried += 1
    print(f"{lost} packets of {lost + carried} were lost")


if __name__ == "__main__":
    main()

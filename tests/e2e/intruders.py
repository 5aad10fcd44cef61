"""Strangers at a port of the tcp transport, each a process on a machine (trials.py and tcp_test.py start them).

usage: intruders.py listen INTERFACE PORT...             until its input ends; then what was sent to each port, in hex
       intruders.py junk ADDRESS PORT COUNT SEED         connections that say junk, half of it behind the magic
       intruders.py replay ADDRESS PORT COUNT SEED       what was overheard (hex, standard input), whole or cut short
       intruders.py half-open ADDRESS PORT COUNT SEED    connections that stop in mid-greeting and stay
"""

import collections
import contextlib
import random
import select
import socket
import struct
import sys

MAGIC = b"cgxtcp/1"
HELLO_BYTES = 56
ETH_P_ALL = 3
PACKET_BYTES = 70_000
HELD = 200        # half-open connections at once
HEARD_BYTES = 200_000  # of each connection
ANSWER_S = 2.0
SHOWN_OUT_S = 5.0  # timeouts.handshake_ms, on a busy machine


def tcp_payload(packet):
    """(source port, port, sequence number, payload) of an Ethernet frame, or None."""
    if packet[12:14] != b"\x08\x00" or packet[23] != socket.IPPROTO_TCP:
        return None
    ip = 14
    tcp = ip + 4 * (packet[ip] & 15)
    end = ip + struct.unpack_from("!H", packet, ip + 2)[0]
    source, port, number = struct.unpack_from("!HHI", packet, tcp)
    return source, port, number, packet[tcp + 4 * (packet[tcp + 12] >> 4):end]


def listen(interface, *ports):
    """Connections to the ports, those to the first port first, each as the bytes that went there."""
    streams = collections.defaultdict(dict)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as link:
        link.bind((interface, ETH_P_ALL))
        print("ready", flush=True)
        while True:
            ready = select.select([link, sys.stdin], [], [])[0]
            if sys.stdin in ready:
                break
            heard = tcp_payload(link.recv(PACKET_BYTES))
            if heard and str(heard[1]) in ports and heard[3]:
                streams[heard[1], heard[0]].setdefault(heard[2], heard[3])
    for (port, _), pieces in sorted(streams.items(), key=lambda each: ports.index(str(each[0][0]))):
        stream = b"".join(pieces.values())[:HEARD_BYTES]  # they come in order where nothing is lost
        if stream.startswith(MAGIC):
            print(port, stream.hex())


def dial(address, port):
    return socket.create_connection((address, port), timeout=ANSWER_S)


def let_go(link, limit_s=SHOWN_OUT_S):
    link.settimeout(limit_s)
    with link:
        try:
            while link.recv(4096):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
    return True


def say(address, port, piece):
    """Until the other side has hung up; False: it had not in time."""
    link = dial(address, port)
    with contextlib.suppress(OSError):
        link.sendall(piece)
        link.shutdown(socket.SHUT_WR)
    return let_go(link, ANSWER_S)


def junk(address, port, count, chance):
    answered = 0
    for i in range(count):
        piece = chance.randbytes(chance.randrange(1, 300))
        answered += say(address, port, (MAGIC if i % 2 else b"") + piece)
    return answered


def replay(address, port, count, chance):
    heard = [bytes.fromhex(line) for line in sys.stdin]
    answered = 0
    for i in range(count):
        stream = chance.choice(heard)
        cut = len(stream) if i % 2 else chance.randrange(HELLO_BYTES, len(stream))
        answered += say(address, port, stream[:cut])
    return answered


def half_open(address, port, count, chance):
    """So many are held; what is said was overheard. Counted is whom the other side lets go."""
    heard = [bytes.fromhex(line) for line in sys.stdin]
    held = collections.deque()
    ended = 0
    for _ in range(count):
        begun = chance.choice(heard)[:chance.choice((0, 1, 8, 16, HELLO_BYTES - 1, HELLO_BYTES))]
        held.append(dial(address, port))
        with contextlib.suppress(ConnectionError):
            held[-1].sendall(begun)
        if len(held) > HELD:
            ended += let_go(held.popleft())
    return ended + sum(map(let_go, held))


def main():
    what, *words = sys.argv[1:]
    if what == "listen":
        return listen(*words)
    address, port, count, seed = words[0], *(int(word) for word in words[1:])
    deeds = {"junk": junk, "replay": replay, "half-open": half_open}
    print(deeds[what](address, port, count, random.Random(seed)))


if __name__ == "__main__":
    main()

"""Trains a small classifier on made-up data with DistributedDataParallel over cgx.

  one machine:    python3 -m cgx.example --ranks 2
  two machines:   python3 -m cgx.example --machines 2 --machine 0 --leader 10.1.0.2     (on the second one: --machine 1)
  with torchrun:  torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 --master-addr 10.1.0.2 -m cgx.example

--leader is an address of the first machine. torchrun says what these options say. A copy of this file with your own model and
data is a start for a script of yours.
"""

import argparse
import ctypes
import fcntl
import os
import socket
import struct

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

import cgx.torch

INPUTS, HIDDEN, CLASSES, BATCH, RATE = 64, 1024, 10, 128, 0.05
SIOCGIFCONF, IFREQ_BYTES = 0x8912, 40


def batch(teacher, random):
    inputs = torch.randn(BATCH, INPUTS, generator=random)
    return inputs, (inputs @ teacher).argmax(1)


def train(steps):
    rank = dist.get_rank()
    torch.manual_seed(0)
    teacher = torch.randn(INPUTS, CLASSES)
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, CLASSES)))
    cgx.torch.register(model)  # all that cgx needs
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    random = torch.Generator().manual_seed(1 + rank)  # each rank has data of its own
    for step in range(steps):
        inputs, classes = batch(teacher, random)
        loss = torch.nn.functional.cross_entropy(model(inputs), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % 10 == 0 or step == steps - 1):
            print(f"step {step:4}  loss {loss.item():.3f}", flush=True)
    return model


def same_everywhere(model):
    """Whether all ranks have the same parameters, to the bit."""
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    first = mine.clone()
    dist.broadcast(first, 0)
    differs = torch.tensor([float(not torch.equal(mine, first))])
    dist.all_reduce(differs)
    return differs.item() == 0


def addresses_here(way):
    """(interface, address) of each address of this machine, second ones of an interface, too. way: a socket."""
    ask = struct.Struct("iP")
    size, _ = ask.unpack(fcntl.ioctl(way.fileno(), SIOCGIFCONF, ask.pack(0, 0)))
    room = ctypes.create_string_buffer(size)
    size, _ = ask.unpack(fcntl.ioctl(way.fileno(), SIOCGIFCONF, ask.pack(size, ctypes.addressof(room))))
    for at in range(0, size, IFREQ_BYTES):
        name = room[at:at + 16].partition(b"\0")[0].decode()
        yield name.partition(":")[0], socket.inet_ntoa(room[at + 20:at + 24])  # eth0:1 names an address of eth0


def interface_towards(host):
    """The interface that leads to the host: torch's own exchange (gloo) asks the machine's name else, often in vain. None
    where it is not found (IPv6)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((host, 9))  # nothing is sent
        except OSError:
            return None
        own = way.getsockname()[0]
        return next((name for name, address in addresses_here(way) if address == own), None)


def name_interface(host):
    name = None if "GLOO_SOCKET_IFNAME" in os.environ else interface_towards(host)
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def one_rank(local_rank, options):
    if local_rank is not None:
        os.environ.update(RANK=str(options.machine * options.ranks + local_rank), MASTER_PORT=str(options.port),
                          WORLD_SIZE=str(options.machines * options.ranks), MASTER_ADDR=options.leader or "127.0.0.1")
    name_interface(os.environ["MASTER_ADDR"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    same = same_everywhere(train(options.steps))
    if dist.get_rank() == 0:
        print("all ranks have the same parameters" if same else "PARAMETERS DIFFER", flush=True)
    cgx.torch.shutdown()
    if not same:
        raise SystemExit(1)


def check(options, refuse):
    """What the words say when they do not fit together, before any rank starts and waits for the others."""
    for name in ("ranks", "machines", "steps"):
        if getattr(options, name) < 1:
            refuse(f"--{name} {getattr(options, name)} must be 1 or more")
    if not 0 <= options.machine < options.machines:
        refuse(f"--machine {options.machine} must be 0 to {options.machines - 1}, below --machines")
    if options.machines > 1 and options.leader is None:
        refuse("--machines above 1 needs --leader, an address of machine 0 that all of them reach")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, what in (("ranks", 1, "of each machine"), ("machines", 1, "how many"), ("machine", 0, "which this is"),
                                ("port", 29500, "where ranks meet"), ("steps", 100, "how many")):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default {default})")
    parser.add_argument("--leader", help="an address of machine 0 (default 127.0.0.1, for one machine)")
    options = parser.parse_args()
    if "RANK" in os.environ:  # torchrun
        one_rank(None, options)
    else:
        check(options, parser.error)
        torch.multiprocessing.spawn(one_rank, (options,), options.ranks)


if __name__ == "__main__":
    main()

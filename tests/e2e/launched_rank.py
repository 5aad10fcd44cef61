"""A rank that a real launcher starts: takes its place from what mpirun or srun says, meets at CGX_LEADER, adds up.

usage: launched_rank.py      the last line of each rank: "rank R of N on HOST: SUM", SUM being that of 1 to N
"""

import os
import socket

import numpy

import cgx

PLACES = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))


def main():
    rank, size = next((int(os.environ[own]), int(os.environ[all_])) for own, all_ in PLACES if own in os.environ)
    with cgx.Session(job="launched", connect_timeout=30) as session:
        world = session.communicator("world", rank, size, timeout=60)
        values = session.empty(1000)
        values[:] = rank + 1
        world.allreduce(values)
        assert (values == values[0]).all()
        print(f"rank {rank} of {size} on {socket.gethostname()}: {values[0]:g}", flush=True)


if __name__ == "__main__":
    main()

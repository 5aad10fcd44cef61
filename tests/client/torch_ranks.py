"""One rank of torch_test.py: runs the scenario named on the command line, ends with status 0 if what it asserts holds.

usage: torch_ranks.py SCENARIO RANK SIZE DIRECTORY [PORT]    ($CGX_SOCKET names the daemon; PORT: meet over TCP)
$CGX_TEST_ACCELERATOR: tensors are on an accelerator, as the hook sees it; with events of this class.
"""

import faulthandler
import os
import sys

import torch
import torch.distributed as dist

import torch_accelerator
import torch_failing
import torch_finding
import torch_living
import torch_telling
import torch_training
from torch_scene import RANK, SIZE

SECONDS = 80  # after which a rank says where it hangs


def main():
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(SECONDS)
    place = f"tcp://127.0.0.1:{sys.argv[5]}" if len(sys.argv) > 5 else f"file://{sys.argv[4]}/store"
    dist.init_process_group("gloo", init_method=place, rank=RANK, world_size=SIZE)
    if os.environ.get("CGX_TEST_ACCELERATOR"):
        torch_accelerator.use(getattr(torch_accelerator, os.environ["CGX_TEST_ACCELERATOR"]))
    places = (torch_failing, torch_finding, torch_living, torch_training, torch_telling)
    scenario = next(getattr(place, sys.argv[1]) for place in places if hasattr(place, sys.argv[1]))
    scenario()
    dist.barrier()


if __name__ == "__main__":
    main()

"""The sum cgxd promises, computed the slow way: everybody gathers everything and adds in the stated order.

A machine's contribution is its ranks added in rank order in fp32, times fp32(1/n); machines are added to +0.0 in the
order of their lowest rank. Runs over gloo's all_gather, which moves bytes and adds nothing.
"""

import torch
import torch.distributed as dist


def average(gradients, ranks_per_machine):
    """The result of AVG over `gradients`, one tensor per rank in rank order."""
    scale = torch.tensor(1.0 / len(gradients), dtype=torch.float32)
    total = torch.zeros_like(gradients[0])
    for first in range(0, len(gradients), ranks_per_machine):
        machine = gradients[first].clone()
        for other in gradients[first + 1:first + ranks_per_machine]:
            machine += other
        total += machine * scale
    return total


def comm_hook(ranks_per_machine, bucket):
    """A DDP communication hook; blocks, which is all a reference needs to do."""
    mine = bucket.buffer()
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    future = torch.futures.Future()
    future.set_result(average(gathered, ranks_per_machine))
    return future

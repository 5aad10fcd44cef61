"""Another job on the daemon of $CGX_SOCKET: one rank with many small tensors. Makes a step per line on standard input.

usage: tenant.py TENSORS
"""

import sys

import cgx

with cgx.Session(job="tenant") as session:
    communicator = session.communicator("tenant", 0, 1)
    arrays = [session.empty((64,)) for _ in range(int(sys.argv[1]))]
    tensors = [communicator.register(f"model.layers.{i // 8}.block{i % 8}.attention.{i}.weight", array)
               for i, array in enumerate(arrays)]
    communicator.commit()
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        communicator.submit(number, tensors)
        communicator.step_end(number)
        communicator.wait(number)
        print("stepped", flush=True)

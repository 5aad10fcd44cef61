"""cgx: hand gradients to this machine's cgxd and get them back reduced, bit-identical on all ranks.

    session = cgx.Session()                               # $CGX_SOCKET, or the machine's daemon
    comm = session.communicator("world", rank, size, put=store_put, get=store_get)
    weight = comm.register("layer.weight", (1024, 1024))  # a NumPy array in memory shared with the daemon
    comm.commit()
    weight.array[:] = gradient
    comm.submit(0, [weight]); comm.step_end(0); comm.wait(0)
    total = comm.allreduce(np.ones(3, np.float32))        # single arrays, outside steps

cgx.torch holds the hook for DistributedDataParallel. Errors are exceptions named after the library's statuses
(cgx.StepOpen, cgx.RankLost, ...), all of them cgx.CgxError.
"""

from ._library import CgxError, library
from .communicator import ABSENT, FAILED, FILLED, PENDING, RESULT, Communicator, Tensor
from .session import Session

__version__ = library.version().decode()
globals().update({error.__name__: error for error in library.errors.values()})
__all__ = ["ABSENT", "CgxError", "Communicator", "FAILED", "FILLED", "PENDING", "RESULT", "Session", "Tensor",
           *(error.__name__ for error in library.errors.values())]

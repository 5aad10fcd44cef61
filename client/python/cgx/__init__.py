"""cgx: gradients through the machine's cgxd.

    import cgx
    with cgx.Session() as session:
        comm = session.communicator("world", rank, size, put=store.set, get=store.get)
        gradient = session.empty((1024, 1024))
        comm.allreduce(gradient, op="avg")

cgx.torch has the hook for DistributedDataParallel; cgx.errors the exceptions, one per status, e.g. cgx.RankLostError.
"""

from cgx._library import library as _library
from cgx._report import Layer, Report, report
from cgx.communicator import ABSENT, FAILED, FILLED, PENDING, RESULT, Call, Communicator, StepInfo, Tensor
from cgx.errors import *  # noqa: F401,F403  one class per status
from cgx.errors import CgxError
from cgx.session import DTYPES, Session

__version__ = _library.cgx_version().decode()
__all__ = ["ABSENT", "Call", "Communicator", "DTYPES", "FAILED", "FILLED", "Layer", "PENDING", "RESULT", "Report", "Session",
           "StepInfo", "Tensor", "report"]  # not the exceptions: help(cgx) would be 2,500 lines longer

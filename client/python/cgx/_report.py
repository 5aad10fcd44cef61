"""What a communicator does to its tensors, for the person who trains: which codec, how many bytes, how much arrives.

    print(state.report())          # of cgx.torch
    print(cgx.report(communicator))
"""

from __future__ import annotations

import ctypes
import math
from typing import List, NamedTuple, Optional

from cgx._library import library
from cgx.errors import CgxError

_PAGE_BYTES = 98304  # CGX_REPORT_BYTES
_HEAD_FIELDS, _LAYER_FIELDS = 11, 9  # later daemons may say more behind them
_SHOWN = 40          # layers of a printed report; all are in `layers`
_QUANTIZERS = ("maxmin", "qsgd", "natural")
# Below these the codec's share of a layer's gradients is too little to go on as before. What error feedback keeps is
# sent later.
_LOW_SHARE, _LOW_SHARE_WITH_FEEDBACK = 0.5, 0.02


class Layer(NamedTuple):
    """One tensor. sent_bytes: of one contribution, encoded; sent_share: of its squared norm, None: not measured.

    seconds: of the last pass, from handing over its bucket to its result; None where it is not known.
    """
    name: str
    codec: str
    feedback: bool
    elements: int
    bytes: int
    sent_bytes: int
    group: int
    sent_share: Optional[float]
    seconds: Optional[float] = None

    @property
    def loses_signal(self) -> bool:
        if self.sent_share is None:
            return False
        return not self.sent_share >= (_LOW_SHARE_WITH_FEEDBACK if self.feedback else _LOW_SHARE)


class Report(NamedTuple):
    """A communicator. wire_bytes: sent by this machine so far, gradient_bytes: reduced here so far.

    feedback_begins: on rank 0's machine, what has become of the error feedback that daemons kept of an earlier communicator
    of the name; empty if there was none.
    """
    job: str
    name: str
    ranks: int
    machines: int
    epoch: int
    codec: str
    operations: int
    gradient_bytes: int
    wire_bytes: int
    layers: List[Layer]
    feedback_begins: str = ""

    @property
    def elements(self) -> int:
        return sum(layer.elements for layer in self.layers)

    @property
    def ratio(self) -> float:
        """How many times fewer bytes a contribution has encoded."""
        sent = sum(layer.sent_bytes for layer in self.layers)
        return sum(layer.bytes for layer in self.layers) / sent if sent else 1.0

    def line(self) -> str:
        """"cgx: 85.0 M gradients, 4 bits, 7.5x fewer bytes, 2 machines x 4 ranks"."""
        what = f"cgx: {counted(self.elements)} gradients"
        if self.machines == 1:
            return f"{what}, added up on this machine alone, {plural(self.ranks, 'rank')}"
        each, rest = divmod(self.ranks, self.machines)
        where = f"{self.machines} machines x {plural(each, 'rank')}" if rest == 0 else (
            f"{self.machines} machines, {self.ranks} ranks")
        saved = "exact" if self.ratio == 1 else f"{strength(self.codec)}, {self.ratio:.1f}x fewer bytes"
        begins = f"; {self.feedback_begins}" if self.feedback_begins else ""
        return f"{what}, {saved}, {where}{begins}"

    def losing(self) -> List[Layer]:
        return [layer for layer in self.layers if layer.loses_signal]

    def __str__(self) -> str:
        rows = [("layer", "codec", "bytes", "sent", "share", "time")]
        largest = sorted(self.layers, key=lambda layer: -layer.sent_bytes)
        for layer in largest[:_SHOWN]:
            rows.append((layer.name, layer.codec, sized(layer.bytes), sized(layer.sent_bytes),
                         "-" if layer.sent_share is None else f"{layer.sent_share:.3f}",
                         "-" if layer.seconds is None else f"{1000 * layer.seconds:.1f} ms"))
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        lines = [self.line()]
        for row in rows:
            lines.append("  ".join(cell.ljust(width) if column < 2 else cell.rjust(width)
                                   for column, (cell, width) in enumerate(zip(row, widths))).rstrip())
        if len(largest) > _SHOWN:
            lines.append(f"... and {len(largest) - _SHOWN} more, with {sized(sum(l.sent_bytes for l in largest[_SHOWN:]))}")
        return "\n".join(lines)


def report(communicator) -> Report:
    """Asks the daemon. Takes no part in training: any rank may, at any time after commit."""
    head, layers, first = None, [], 0
    text = ctypes.create_string_buffer(_PAGE_BYTES)
    while True:
        following = ctypes.c_uint32()
        communicator._do(library.cgx_report, first, text, ctypes.byref(following))
        for line in text.value.decode(errors="replace").split("\n"):  # splitlines() would end them inside names, too
            kind, *fields = line.split("\t")
            if kind == "communicator":
                head = fields
            elif kind == "tensor":
                layers.append(_layer(fields))
        first = following.value
        if first == 0:
            break
    if head is None:
        raise CgxError(f"the daemon's report of communicator {communicator.name} does not name it")
    job, name, ranks, machines, epoch, codec, _, operations, gradient_bytes, wire_bytes, feedback_begins = head[:_HEAD_FIELDS]
    return Report(job, name, int(ranks), int(machines), int(epoch), codec, int(operations), int(gradient_bytes),
                  int(wire_bytes), layers, feedback_begins)


def _layer(fields) -> Layer:
    name, codec, feedback, elements, size, sent, group, intended, arrived = fields[:_LAYER_FIELDS]
    intended, arrived = float(intended), float(arrived)
    share = None if intended == 0 else arrived / intended
    return Layer(name, codec, feedback == "feedback", int(elements), int(size), int(sent), int(group), share)


def warning_of(losing: List[Layer]) -> str:
    named = ", ".join(f"{layer.name} ({layer.codec}: {layer.sent_share:.2f})" for layer in losing[:3])
    more = f" and {len(losing) - 3} more" if len(losing) > 3 else ""
    return (f"cgx: of the gradients of {plural(len(losing), 'layer')} little is sent: {named}{more}, as the share of the "
            "squared norm. Give these layers more bits or error feedback in the policy (cgxctl policy)")


def strength(codec: str) -> str:
    """"4 bits" of a quantizer, else the codec itself."""
    name, _, rest = codec.partition(":")
    bits = rest.split(",")[0]
    return plural(int(bits), "bit") if name in _QUANTIZERS and bits.isdigit() else codec


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def counted(number: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def sized(count: int) -> str:
    power = min(int(math.log(count, 1024)), 4) if count > 0 else 0
    return f"{count} B" if power == 0 else f"{count / 1024 ** power:.1f} {('', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"

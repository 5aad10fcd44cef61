"""Machine code of NVIDIA's processors, read from a fatbin: its kernels, and the least that a loop of theirs costs.

A fatbin holds an ELF file (a cubin) for each architecture, an instruction has sixteen bytes. What is needed of their
encoding was compared with what nvdisasm prints for sm_80 and sm_90.
"""

import heapq
import re
import struct

CALL, BRANCH, EXIT, RETURN = 0x944, 0x947, 0x94d, 0x950  # the lowest 12 bits
REGISTERS = 0x2f04  # an entry of .nv.info: symbol, registers
WIDTHS = {4: 32, 5: 64, 6: 128}
# What instructions do: {kind: is this instruction one?}. `operation` is its lowest 12 bits.
KINDS = {
    "generic load": lambda operation, high: operation == 0x980,
    "load": lambda operation, high: operation == 0x981,
    "load 128": lambda operation, high: operation in (0x980, 0x981) and WIDTHS.get(high >> 9 & 7) == 128,
    "load of a list": lambda operation, high: operation == 0x981 and high >> 15 & 1 == 1,  # LDG.CONSTANT
    "store": lambda operation, high: operation in (0x985, 0x986),
    "store 128": lambda operation, high: operation in (0x985, 0x986) and WIDTHS.get(high >> 9 & 7) == 128,
    "shared store 128": lambda operation, high: operation == 0x388 and WIDTHS.get(high >> 9 & 7) == 128,
    "minimum": lambda operation, high: operation in (0x209, 0x809),
    "to integer": lambda operation, high: operation == 0x305 and high >> 14 & 3 == 0,  # the nearest
    "to float": lambda operation, high: operation in (0x245, 0x306),
    "to half": lambda operation, high: operation in (0x23e, 0x304),
    "from half": lambda operation, high: operation == 0x230,
    "multiply": lambda operation, high: operation in (0x220, 0x820),
    "select": lambda operation, high: operation in (0x207, 0x208, 0x807, 0x808),
}
# How many of them are one piece of work, where that is not one: all that four values want lie together.
TOGETHER = {"minimum": 12, "to integer": 4, "to float": 4, "to half": 4, "from half": 4, "multiply": 4, "select": 4}


class Kernel:
    def __init__(self, sm, registers, code):
        self.sm, self.registers, self.code = sm, registers, code

    def count(self, kind):
        return sum(KINDS[kind](low & 0xfff, high) for low, high in self.code)

    def after(self, at):
        """Where it may go on after the instruction at this place. Calls are left out: they are divisions of special values."""
        low, high = self.code[at]
        operation, always = low & 0xfff, low >> 12 & 0xf == 7
        if operation == BRANCH:
            always = always and high >> 23 & 0x3f == 7
            return [self.target(at, low)] + ([] if always else [at + 1])
        if operation in (CALL, EXIT, RETURN):
            return [] if always else [at + 1]
        return [at + 1]

    def target(self, at, low):
        words = low >> 34
        if words >> 29:
            words -= 1 << 30
        if self.sm >= 90:
            words = words << 8 | low >> 16 & 0xff
        return at + 1 + words // 4


def kernels(path, sm):
    """{name: Kernel} of a fatbin, compiled for this architecture."""
    with open(path, "rb") as file:
        fatbin = file.read()
    found = {}
    for cubin in (fatbin[magic.start():] for magic in re.finditer(b"\x7fELF", fatbin)):
        flags, = struct.unpack_from("<I", cubin, 0x30)
        if flags >> 8 & 0xff == sm:
            found.update(kernels_of(cubin, sm))
    return found


def kernels_of(cubin, sm):
    start, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3a)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    text = lambda table, at: cubin[sections[table][4] + at:].split(b"\0", 1)[0].decode()
    body = {text(names, section[0]): cubin[section[4]:section[4] + section[5]] for section in sections}
    symbols = [text(section[6], name) for section in sections if section[1] == 2
               for name, in struct.iter_unpack("<I20x", cubin[section[4]:section[4] + section[5]])]
    registers, info, at = {}, body[".nv.info"], 0
    while at < len(info):
        entry, length = struct.unpack_from("<HH", info, at)
        if entry == REGISTERS:
            symbol, number = struct.unpack_from("<II", info, at + 4)
            registers[symbols[symbol]] = number
        at += 4 + (length if entry & 0xff == 4 else 0)
    return {name: Kernel(sm, registers[name], list(struct.iter_unpack("<QQ", body[".text." + name])))
            for name in (section.removeprefix(".text.") for section in body if section.startswith(".text.cgx_"))}


def outermost_loop(kernel):
    """The largest set of instructions that can each be reached from all others (Tarjan's algorithm, without recursion)."""
    order, low, stack, best = {}, {}, [], []
    work = [(0, iter(kernel.after(0)))]
    order[0] = low[0] = 0
    stack.append(0)
    on_stack = {0}
    while work:
        at, following = work[-1]
        for other in following:
            if other not in order:
                order[other] = low[other] = len(order)
                stack.append(other)
                on_stack.add(other)
                work.append((other, iter(kernel.after(other))))
                break
            if other in on_stack:
                low[at] = min(low[at], order[other])
        else:
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[at])
            if low[at] == order[at]:
                place = stack.index(at)
                on_stack.difference_update(stack[place:])
                best = max(best, stack[place:], key=len)
                del stack[place:]
    return set(best)


class Loop:
    """A kernel's outermost loop as straight pieces of code: {first instruction: (its length, what it passes, what follows)}."""

    def __init__(self, kernel, kinds):
        self.kernel, self.kinds, self.inside = kernel, kinds, outermost_loop(kernel)
        before = {}
        for at in range(len(kernel.code)):
            for other in kernel.after(at):
                before.setdefault(other, []).append(at)
        self.heads = [at for at in self.inside if any(other not in self.inside for other in before.get(at, []))]
        first = set(self.heads)
        for at in self.inside:
            following = self.following(at)
            if len(kernel.after(at)) > 1 or len(following) > 1:
                first.update(following)
            first.update(other for other in following if len(before[other]) > 1)
        self.pieces = {at: self.piece(at, first) for at in first}

    def following(self, at):
        return [other for other in self.kernel.after(at) if other in self.inside]

    def piece(self, at, first):
        length, passed = 0, [0] * len(self.kinds)
        while True:
            low, high = self.kernel.code[at]
            length += 1
            for i, kind in enumerate(self.kinds):
                passed[i] += KINDS[kind](low & 0xfff, high)
            following = self.following(at)
            if len(following) != 1 or following[0] in first:
                return length, tuple(n // TOGETHER.get(kind, 1) for n, kind in zip(passed, self.kinds)), following
            at = following[0]

    def shortcuts(self, stops):
        """{stop: {the next stop: the fewest instructions from the one's begin to the other's}}"""
        found = {}
        for stop in stops:
            length, _, following = self.pieces[stop]
            least, heap = {}, [(length, other) for other in following]
            heapq.heapify(heap)
            while heap:
                so_far, at = heapq.heappop(heap)
                if at in least:
                    continue
                least[at] = so_far
                if at not in stops:
                    length, _, following = self.pieces[at]
                    for other in following:
                        heapq.heappush(heap, (so_far + length, other))
            found[stop] = {at: least[at] for at in least if at in stops}
        return found


def at_least(loop, shortcuts, head, i, most):
    """{(stop, n): the fewest instructions from there back to the head with n more of kind i}: nothing less will do."""
    before = {}
    for stop, others in shortcuts.items():
        for other, length in others.items():
            before.setdefault(other, []).append((stop, length))
    least, heap = {}, [(length, stop, n) for stop, length in before.get(head, [])
                       for n in range(min(loop.pieces[stop][1][i], most) + 1)]
    heapq.heapify(heap)
    while heap:
        so_far, at, n = heapq.heappop(heap)
        if (at, n) in least:
            continue
        least[at, n] = so_far
        for stop, length in before.get(at, []) if at != head else []:
            own = loop.pieces[stop][1][i]
            for more in range(min(own, most) + 1) if n == 0 else [min(n + own, most)]:
                heapq.heappush(heap, (so_far + length, stop, more))
    return least


def least_walk(kernel, work):
    """The fewest instructions from where the kernel's outermost loop begins around to there, over any branches and inner
    loops, with at least so much work of each kind on the way: (instructions, {kind: how much})."""
    kinds, goal = list(work), tuple(work.values())
    loop = Loop(kernel, kinds)
    stops = {at for at, (_, passed, _) in loop.pieces.items() if any(passed)} | set(loop.heads)
    shortcuts = loop.shortcuts(stops)
    walks = [least_walk_from(head, loop, shortcuts, goal) for head in loop.heads]
    found = [walk for walk in walks if walk]
    if not found:
        raise ValueError(f"no way around the loop has {work}: the code has no such fast path, or spreads its work")
    length, passed = min(found)
    return length, dict(zip(kinds, passed))


def least_walk_from(head, loop, shortcuts, goal):
    """Dijkstra's algorithm over places and work done, best first by what is still to come at least (A*)."""
    ahead = [at_least(loop, shortcuts, head, i, most) for i, most in enumerate(goal)]

    def rest(at, done):
        missing = [ahead[i].get((at, goal[i] - done[i])) for i in range(len(goal))]
        return None if None in missing else max(missing)

    nothing = (0, ) * len(goal)
    first = rest(head, nothing)
    seen, heap = set(), [] if first is None else [(first, 0, head, nothing, nothing)]
    while heap:
        _, so_far, at, done, passed = heapq.heappop(heap)
        if at == head and so_far > 0:
            return so_far, passed
        if (at, done) in seen:
            continue
        seen.add((at, done))
        own = loop.pieces[at][1]
        passed = tuple(a + b for a, b in zip(passed, own))
        done = tuple(min(a + b, most) for a, b, most in zip(done, own, goal))
        for other, length in shortcuts[at].items():
            left = 0 if other == head and done == goal else rest(other, done) if other != head else None
            if left is not None:
                heapq.heappush(heap, (so_far + length + left, so_far + length, other, done, passed))
    return None

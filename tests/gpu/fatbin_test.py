"""The machine code that nvcc makes has the kernels of kernels.def, all of them and no others, and exact arithmetic."""

import os
import re
import struct
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FATBINS = os.path.join(os.environ.get("CGX_BUILD_DIR", "build/release"), "lib")
KERNEL = re.compile(r"^X\((\w+), (\w+), ", re.MULTILINE)
FOUND = re.compile(r"^F\((\w+), ", re.MULTILINE)  # whose entries must be found before they are read
OPERATION = re.compile(r"^X\((\w+)", re.MULTILINE)
WRITING = ("encode", "reduce")
# What would give other bits than the scalar lane.
INEXACT = re.compile(rb"[^\n]*(?:\bfma\.|\.approx|\.ftz)[^\n]*")
DIVIDING = {"maxmin", "symmetric", "sign"}  # in fp32

# Of max-min with 4 bits for sm_80: registers, and loads through generic addresses, which nvcc may not move across stores
# to shared memory. What there is, not what is wanted, which is none of the latter (kernels/cuda/README.md).
CEILINGS = {"encode": (48, 32), "decode": (48, 53), "decode_add": (48, 52), "reduce": (62, 94), "combine": (63, 94)}
SM_80 = 0x50
GENERIC_LOAD, GLOBAL_LOAD = 0x980, 0x981  # the lowest 12 bits of an instruction of 16 bytes


def rows(name, pattern):
    with open(os.path.join(ROOT, "kernels", "cuda", name), encoding="utf-8") as file:
        return pattern.findall(file.read())


def stems():
    """{family: the stems of its kernels}"""
    families = {}
    for stem, family in rows("kernels.def", KERNEL):
        families.setdefault(family, set()).add(stem)
    return families


def path_of(family):
    return os.path.join(FATBINS, f"{family}.fatbin")


def text_of(family):
    with open(path_of(family), "rb") as file:
        code = file.read()
    begin = code.index(b".version")
    return code[begin:code.index(b"\0", begin)]


def machine_code(family, sm):
    """{kernel: (registers, its instructions' operations)}: a cubin is an ELF file in the fatbin."""
    with open(path_of(family), "rb") as file:
        fatbin = file.read()
    kernels = {}
    for cubin in (fatbin[found.start():] for found in re.finditer(b"\x7fELF", fatbin)):
        if struct.unpack_from("<I", cubin, 0x30)[0] >> 8 & 0xff != sm:
            continue
        start, = struct.unpack_from("<Q", cubin, 0x28)
        size, count, names = struct.unpack_from("<HHH", cubin, 0x3a)
        sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
        for section in sections:
            name = cubin[sections[names][4] + section[0]:].split(b"\0", 1)[0].decode()
            code = cubin[section[4]:section[4] + section[5]]
            if name.startswith(".text.cgx_"):
                operations = [word & 0xfff for word, _ in struct.iter_unpack("<QQ", code)]
                kernels[name.removeprefix(".text.")] = (section[7] >> 24, operations)
    return kernels


@unittest.skipUnless(any(os.path.exists(path_of(family)) for family in stems()), "skipped: built without nvcc")
class Fatbins(unittest.TestCase):
    def test_they_have_the_kernels_of_the_list(self):
        for family, own in stems().items():
            with self.subTest(family):
                operations = rows("operations.def", OPERATION)
                listed = {f"cgx_{stem}_{operation}" for stem in own for operation in operations}
                listed |= {f"cgx_{stem}_find_{operation}" for stem in own & set(rows("kernels.def", FOUND))
                           for operation in operations if operation != "encode"}
                listed |= {f"cgx_norms_{operation}" for operation in WRITING}
                if family == "sparse":
                    listed |= {f"cgx_pack_{operation}" for operation in WRITING}
                found = {name.decode() for name in re.findall(rb"\.visible \.entry (\w+)\(", text_of(family))}
                self.assertEqual(found, listed)

    def test_they_neither_contract_nor_approximate_nor_flush(self):
        for family in stems():
            with self.subTest(family):
                text = text_of(family)
                self.assertEqual(INEXACT.findall(text), [])
                if family in DIVIDING:
                    self.assertIn(b"div.rn.f32", text)  # the text is the kernels'

    def test_their_registers_and_generic_loads_grow_no_further(self):
        code = machine_code("maxmin", SM_80)
        for operation, (registers_max, generic_max) in CEILINGS.items():
            with self.subTest(operation):
                registers, operations = code[f"cgx_maxmin4_{operation}"]
                generic = operations.count(GENERIC_LOAD)
                print(f"figure: {operation}/maxmin4: {registers} registers, {generic} generic loads, {len(operations)} instructions",
                      flush=True)
                self.assertGreater(operations.count(GLOBAL_LOAD), 0)  # these are loads
                self.assertTrue(0 < registers <= registers_max)
                self.assertLessEqual(generic, generic_max)


if __name__ == "__main__":
    unittest.main()

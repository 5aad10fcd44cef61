"""Man pages and completions say what the programs say; the list of runtime packages is what the programs need."""

import fnmatch
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("CGX_BUILD_DIR", os.path.join(ROOT, "build", "release"))
DEPLOY = os.path.join(ROOT, "deploy")
# cc links these, or libc brings them: every Debian has them.
READS_VARIABLE = re.compile(r'(?:\bvariable|\bnumber|\bcount|getenv|environ(?:ment)?\.get)\("([A-Z][A-Z_]+)"')
EVERYWHERE = {"libc6", "libgcc-s1"}
# In /proc/devices, of older drivers (up to 535) and of newer ones.
NVIDIA_DEVICES = (("nvidia-frontend", "nvidia-uvm", "nvidia-caps"), ("nvidia", "nvidiactl", "nvidia-uvm", "nvidia-caps"))


def load(path):
    spec = importlib.util.spec_from_file_location("generate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(*names):
    with open(os.path.join(DEPLOY, *names), encoding="utf-8") as file:
        return file.read()


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def completions(program, *words):
    """What bash offers for the last word."""
    script = (f". {os.path.join(DEPLOY, 'completion', program)}; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); "
              f"_{program}; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    done = subprocess.run(["bash", "-c", script, "bash", program, *words], capture_output=True, text=True, cwd=DEPLOY,
                          timeout=30, check=True)
    return done.stdout.split()


class Texts(unittest.TestCase):
    maxDiff = None

    def test_man_pages_and_completions_are_what_would_be_made_now(self):
        for path, text in load(os.path.join(DEPLOY, "man", "generate.py")).made(os.path.join(BUILD, "bin")).items():
            self.assertEqual(read(path), text, f"{path} is stale: python3 deploy/man/generate.py build/release/bin")

    def test_every_option_in_the_man_pages_has_a_description(self):
        for name in ("cgxd.8", "cgxctl.1", "cgxsim.1"):
            options = re.findall(r"^\.TP\n(.*)\n(.*)$", read("man", name), re.MULTILINE)
            self.assertGreater(len(options), 5)
            self.assertEqual([names for names, text in options if not text or text.startswith(".")], [], name)

    def test_the_reference_lists_every_variable_that_is_read_and_no_other(self):
        files = output("git", "-C", ROOT, "ls-files", "client", "daemon", "config", "proto", "scheduler", "transport", "kernels")
        product = [name for name in files.split() if name.endswith((".cc", ".h", ".c", ".py"))]
        read_here = set()
        for name in product:
            read_here |= set(READS_VARIABLE.findall(read("..", name)))
        self.assertLess({"CGX_SOCKET", "CGX_AUTOSTART", "CGX_CONTROL", "CGX_LIBRARY", "NOTIFY_SOCKET"}, read_here)
        section = read("REFERENCE.md").split("## Variables")[1].split("\n## ")[0]
        listed = {name for row in re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
        self.assertEqual(read_here - set(re.findall(r"`(\w+)`", section)), set(), "missing in deploy/REFERENCE.md")
        self.assertEqual(listed - read_here, set(), "nobody reads these any more")

    def test_the_reference_lists_every_command_and_option_of_cgxd(self):
        page = load(os.path.join(DEPLOY, "man", "generate.py")).help_of(os.path.join(BUILD, "bin", "cgxd"))
        section = read("REFERENCE.md").split("## Variables")[0]
        for each in (page, *page.commands):
            for item in each.options + [command for command in each.commands]:
                name = item.all_names()[-1] if hasattr(item, "names") else f"cgxd {item.path}"
                if name != "--help":
                    self.assertRegex(section, rf"[` ]{re.escape(name)}\b", f"of cgxd {each.path}")

    def test_the_reference_lists_every_clock(self):
        with open(os.path.join(ROOT, "config", "REFERENCE.md"), encoding="utf-8") as file:
            keys = re.findall(r"^\| `(\w+)`", file.read().split("## `timeouts`")[1].split("\n## ")[0], re.MULTILINE)
        clocks = read("REFERENCE.md").split("## Which clock")[1]
        self.assertEqual([key for key in keys if f"`{key}`" not in clocks], [])
        self.assertGreater(len(keys), 5)

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed")
    def test_man_pages_have_no_mistakes(self):
        for page in ("cgxd.8", "cgxctl.1", "cgxsim.1"):
            command = ["groff", "-man", "-ww", "-z", os.path.join(DEPLOY, "man", page)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""), page)

    def test_cgxctl_is_completed(self):
        self.assertIn("policy", completions("cgxctl", "pol"))
        self.assertEqual(completions("cgxctl", "-o", "j"), ["json"])
        self.assertEqual(completions("cgxctl", "policy", "ap"), ["apply"])
        self.assertEqual(completions("cgxctl", "policy", "apply", "READ"), ["README.md"])
        self.assertEqual(completions("cgxctl", "doctor", "--config", "READ"), ["README.md"])
        self.assertEqual(completions("cgxctl", "--address", "READ"), ["README.md"])
        self.assertEqual(completions("cgxctl", "policy", "apply", "--set", "READ"), [])
        self.assertIn("jobs", completions("cgxctl", "-j", "plan", "jo"))
        self.assertIn("apply", completions("cgxctl", "-j", "plan", "policy", "ap"))
        self.assertLessEqual({"--output", "--timeout"}, set(completions("cgxctl", "status", "--")))
        self.assertIn("--reason", completions("cgxctl", "policy", "apply", "--"))
        self.assertNotIn("--reason", completions("cgxctl", "policy", "get", "--"))

    def test_cgxd_is_completed(self):
        self.assertEqual(completions("cgxd", "--config", "READ"), ["README.md"])
        self.assertEqual(completions("cgxd", "ru"), ["run"])
        self.assertIn("--set", completions("cgxd", "run", "--s"))
        self.assertIn("readelf", completions("cgxd", "run", "--", "readel"))

    def test_cgxsim_is_completed(self):
        self.assertIn("--machines", completions("cgxsim", "--ma"))
        self.assertEqual(completions("cgxsim", "--model", "READ"), ["README.md"])
        self.assertEqual(completions("cgxsim", "--core", "eng"), ["engines"])

    def test_completions_are_bash(self):
        for name in os.listdir(os.path.join(DEPLOY, "completion")):
            done = subprocess.run(["bash", "-n", os.path.join(DEPLOY, "completion", name)], capture_output=True, text=True,
                                  timeout=30)
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)

    def test_the_recipe_scrapes_the_address_that_the_daemon_serves_at(self):
        text = read("README.md")
        address, port = re.search(r"metrics: {address: ([\d.]+), port: (\d+)}", text).groups()
        self.assertEqual(re.findall(r'targets: \["(\S+)"\]', text), [f"{address}:{port}"])

    def test_the_drop_in_for_gpus_opens_what_older_and_newer_drivers_register(self):
        allowed = re.findall(r"^DeviceAllow=char-(\S+) rw$", read("systemd", "gpu.conf"), re.MULTILINE)
        for names in NVIDIA_DEVICES:
            self.assertEqual([name for name in names if not any(fnmatch.fnmatchcase(name, each) for each in allowed)], [])

    def test_drop_ins_have_one_assignment_a_line(self):
        for name in ("gpu.conf", "rdma.conf"):
            lines = [line for line in read("systemd", name).splitlines() if line and not line.startswith("#")]
            self.assertEqual([line for line in lines if not re.fullmatch(r"\[\w+\]|\w+=[^,]+", line)], [], name)

    def test_whoever_stops_the_daemon_waits_longer_than_it_drains(self):
        with open(os.path.join(ROOT, "config", "REFERENCE.md"), encoding="utf-8") as file:
            drain_s = int(re.search(r"^\| `drain_ms` \|.*?\| `(\d+) s` \|", file.read(), re.MULTILINE)[1])
        for names, pattern in ((("container", "Containerfile"), r"podman run .*--stop-timeout=(\d+)"),
                               (("systemd", "cgxd.service.in"), r"^TimeoutStopSec=(\d+)$"),
                               (("helm", "cgxd", "values.yaml"), r"^terminationGracePeriodSeconds: (\d+)$")):
            seconds = int(re.search(pattern, read(*names), re.MULTILINE)[1])
            self.assertGreaterEqual(seconds, drain_s + 10, names)

    def test_runtime_packages_are_those_the_programs_need(self):
        if "VERSION_CODENAME=bookworm" not in read("/etc/os-release"):
            self.skipTest("the list is Debian 12's")
        line = re.search(r'^run="([^"]*)"', read("install_packages"), re.MULTILINE)[1]
        listed, bin_folder = set(line.replace("\\\n", "").split()), os.path.join(BUILD, "bin")
        dynamic = output("readelf", "-dW", *(os.path.join(bin_folder, name) for name in ("cgxd", "cgxctl", "cgxsim")))
        libraries = set(re.findall(r"Shared library: \[(lib[^]]*)\]", dynamic))
        places = [f"*lib/{sysconfig.get_config_var('MULTIARCH')}/{library}" for library in libraries]
        needed = {owner.split(":")[0] for owner in output("dpkg-query", "-S", *places).splitlines()}
        self.assertEqual(needed - EVERYWHERE - listed, set(), "deploy/install_packages: missing in the group run")
        self.assertEqual({each for each in listed if each.startswith("lib")} - needed - {"libfmt9"}, set(),
                         "deploy/install_packages: no longer needed in the group run")


if __name__ == "__main__":
    unittest.main()

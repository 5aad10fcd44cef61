"""The Helm chart: helm renders and lints it, Kubernetes' schemas accept the result, and so does cgxd, which serves with it.

helm is the one in PATH, or that of make_helm in $CGX_HELM (default ~/.cache/cgxd/helm); `.ci/run cluster` gets it. Without it only the
texts are compared.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))

from machines import Machines, isolation_possible  # noqa: E402

BUILD = os.environ.get("CGX_BUILD_DIR", os.path.join(ROOT, "build", "release"))
CHART = os.path.join(ROOT, "deploy", "helm", "cgxd")
TOOLS = os.environ.get("CGX_HELM", os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "cgxd", "helm"))
HELM = shutil.which("helm") or shutil.which(os.path.join(TOOLS, "helm"))
CHECKER = shutil.which(os.path.join(TOOLS, "venv", "bin", "kubernetes-validate"))
OLDEST, NEWEST = "1.25", "1.37"  # Kubernetes; the oldest is the chart's
SETTINGS = {
    "as it is": (),
    "with a key": ("keySecret=cluster-key",),
    "pods' network": ("hostNetwork=false", "network={10.1.0.0/24,fd00::/64}", "group=2000"),
    "another network": ("network={10.2.0.0/24}", "config.metrics.address=10.2.0.7"),
    "placed": ("nodeSelector.kind=trainer", "tolerations[0].key=gpu", "tolerations[0].operator=Exists", "runDirectory=/srv/cgxd",
               "ports.mesh=7171", "image.tag=0.2"),
}
OF_KUBERNETES = "192.0.2.2"
PAGES = {"config.metrics.job_names=true": 9464, "ports.metrics=9500": 9500, "config.metrics.port=9999": 9999,
         "config.metrics.port=0": None, "config.metrics.address=127.0.0.1": None}  # a setting, and the port to scrape
IMAGE = "image.repository=registry.test/cgxd"  # has no default
WRONG = {"image.repository=": "repository", "network={}": "network", "network={everywhere}": "network", "ports.mesh=99999": "mesh", "ports.dta=1": "dta",
         "netwrok={10.0.0.0/8}": "netwrok", "runDirectory=run": "runDirectory", "keySecret=": None}


def text_of(*names):
    with open(os.path.join(CHART, *names), encoding="utf-8") as file:
        return file.read()


class Texts(unittest.TestCase):
    def test_each_value_is_used_and_each_used_one_is_there(self):
        values = yaml.safe_load(text_of("values.yaml"))
        leaves = {f"{key}.{inner}" if key in ("image", "ports") else key
                  for key, value in values.items() for inner in (value if key in ("image", "ports") else [""])}
        templates = "".join(text_of("templates", name) for name in os.listdir(os.path.join(CHART, "templates")))
        self.assertEqual(set(re.findall(r"\.Values\.([\w.]+)", templates)), leaves)
        schema = yaml.safe_load(text_of("values.schema.json"))["properties"]
        self.assertEqual(set(schema) - {"global"}, set(values))

    def test_the_address_may_be_of_either_family(self):
        words = [re.sub(r"{{.*?}}", "7070", word)
                 for word in re.findall(r'"([^"]*\$\(ADDRESS\)[^"]*)"', text_of("templates", "daemonset.yaml"))]
        self.assertEqual(len(words), 2, "mesh.listen and metrics.address")
        for address in ("127.0.0.1", "::1"):
            given = [part for word in words for part in ("--set", word.replace("$(ADDRESS)", address))]
            done = subprocess.run([os.path.join(BUILD, "bin", "cgxd"), "--check-config", *given], capture_output=True, text=True,
                                  timeout=20, stdin=subprocess.DEVNULL)
            self.assertEqual((done.returncode, done.stderr), (0, ""), address)

    def test_versions_are_the_projects(self):
        with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
            version = re.search(r"project\(cgxd VERSION ([\d.]+)", file.read()).group(1)
        chart, values = yaml.safe_load(text_of("Chart.yaml")), yaml.safe_load(text_of("values.yaml"))
        self.assertEqual({chart["version"], chart["appVersion"], values["image"]["tag"]}, {version})


@unittest.skipUnless(HELM, "no helm: tests/deploy/make_helm gets it from the Python registry")
class Rendered(unittest.TestCase):
    maxDiff = None

    def helm(self, *words, good=True):
        done = subprocess.run([HELM, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        if good:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def render(self, *settings):
        words = [word for setting in (IMAGE, *settings) for word in ("--set", setting)]
        return self.helm("template", "cgxd", CHART, *words).stdout

    def parts(self, *settings):
        """(the configuration's text, the DaemonSet's pod)."""
        found = {part["kind"]: part for part in yaml.safe_load_all(self.render(*settings))}
        self.assertEqual(set(found), {"ConfigMap", "DaemonSet"})
        return found["ConfigMap"]["data"]["cgxd.yaml"], found["DaemonSet"]["spec"]["template"]["spec"]

    def annotations(self, *settings):
        """Of the pod."""
        found, = [part for part in yaml.safe_load_all(self.render(*settings)) if part["kind"] == "DaemonSet"]
        return found["spec"]["template"]["metadata"]["annotations"]

    def test_it_lints(self):
        self.helm("lint", "--strict", CHART, "--set", IMAGE)

    @unittest.skipUnless(CHECKER, "no kubernetes-validate: tests/deploy/make_helm gets it")
    def test_kubernetes_takes_it(self):
        for name, settings in SETTINGS.items():
            for version in (OLDEST, NEWEST):
                with self.subTest(name, version=version), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                    file.write(self.render(*settings))
                    file.flush()
                    done = subprocess.run([CHECKER, "--strict", "-k", version, file.name], capture_output=True, text=True,
                                          timeout=60)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_values_that_cannot_be_are_refused_by_name(self):
        for setting, name in WRONG.items():
            with self.subTest(setting):
                done = self.helm("template", "cgxd", CHART, "--set", IMAGE, "--set", setting, good=False)
                self.assertEqual(done.returncode == 0, name is None, done.stderr)
                self.assertIn(name or "", done.stderr)

    def test_the_readme_builds_and_names_the_image_that_nodes_pull(self):
        with open(os.path.join(ROOT, "deploy", "README.md"), encoding="utf-8") as file:
            text = file.read()
        repository = re.search(r"image\.repository=(\S+)", text)[1]
        tags = re.findall(r"podman (?:build\s.*?-t|push)\s+(\S+?)`?[\s`]", text)
        _, pod = self.parts(f"image.repository={repository}")
        self.assertEqual({*tags, pod["containers"][0]["image"]}, {tags[0]})
        self.assertEqual(len(tags), 2)

    def test_a_changed_configuration_reaches_the_pod(self):
        for settings in SETTINGS.values():
            _, pod = self.parts(*settings)
            self.assertNotIn("subPath", str(pod))
            folders = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
            self.assertIn("/etc/cgxd", folders)
            self.assertEqual([each for each in folders if each.startswith("/etc/cgxd/")], [])

    def test_what_the_configuration_says_counts(self):
        text, pod = self.parts("config.metrics.address=10.2.0.7", "config.mesh.listen=10.2.0.7:7000")
        self.assertEqual(yaml.safe_load(text)["mesh"]["listen"], "10.2.0.7:7000")
        self.assertNotIn("mesh.listen", str(pod["containers"][0]["args"]))
        self.assertNotIn("metrics.address", str(pod["containers"][0]["args"]))

    def test_what_the_configuration_says_counts_where_it_is_nothing_too(self):
        text, _ = self.parts("config.transport.ports=0", "config.metrics.port=0", "config.metrics.job_names=false")
        made = yaml.safe_load(text)
        self.assertEqual((made["transport"]["ports"], made["metrics"]), (0, {"job_names": False, "port": 0}))
        self.assertEqual((made["log"]["format"], made["mesh"]["listen"]), ("json", "[::]:7070"))

    def test_cgxd_takes_what_the_schema_takes(self):
        for setting in ("ports.data=20000", "ports.data=20000-20100", "ports.data=0", "config.transport.ports=0"):
            text, _ = self.parts(f"{setting}", "network={127.0.0.0/8}", "hostNetwork=false")
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(text)
                file.flush()
                done = subprocess.run([os.path.join(BUILD, "bin", "cgxd"), "--check-config", file.name], capture_output=True,
                                      text=True, timeout=20)
                self.assertEqual((done.returncode, done.stderr), (0, ""), setting)

    def test_the_hosts_processes_and_memory_stay_closed(self):
        for settings in SETTINGS.values():
            _, pod = self.parts(*settings)
            self.assertEqual((pod["hostPID"], pod["hostIPC"], pod["automountServiceAccountToken"]), (False, False, False))
            daemon, = pod["containers"]
            self.assertEqual(daemon["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                         "capabilities": {"drop": ["ALL"]}})
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            first, = pod["initContainers"]
            self.assertEqual(first["securityContext"]["capabilities"], {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]})
            self.assertNotIn("privileged", str(pod))

    def test_the_key_can_be_read_by_the_daemons_group(self):
        """A secret's files are root's, of the group fsGroup, with defaultMode."""
        _, pod = self.parts("keySecret=k", "group=2000")
        secret, = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        self.assertEqual((pod["securityContext"]["runAsGroup"], pod["securityContext"]["fsGroup"]), (2000, 2000))
        self.assertEqual(secret["defaultMode"], 0o440)

    @unittest.skipUnless(isolation_possible() and shutil.which("setpriv"), "needs root, for a machine of its own")
    def test_cgxd_serves_with_what_it_renders_and_answers_its_probes(self):
        with Machines(1) as machines:
            # Kubernetes' own network is another one than the daemons'.
            subprocess.run(["ip", "-n", machines[0].netns, "address", "add", OF_KUBERNETES + "/24", "dev", "lo"], check=True)
            for setting, port in PAGES.items():
                with self.subTest(setting), tempfile.TemporaryDirectory(prefix="cgx-chart-") as folder:
                    self.serves(machines[0], folder, port, setting)

    def serves(self, machine, folder, scraped_port, *settings):
        os.chmod(folder, 0o755)
        run, key, config = (os.path.join(folder, name) for name in ("run", "key", "cgxd.yaml"))
        settings = ("network={10.77.0.0/24}", "keySecret=k", f"runDirectory={run}", "ports.data=21000-21010",
                    "config.policy.codec=fp32", *settings)
        text, pod = self.parts(*settings)
        self.make_place(run, key, config, text)
        container, = pod["containers"]
        arguments = [word.replace("$(ADDRESS)", OF_KUBERNETES) for word in container["args"]]
        user, group = str(pod["securityContext"]["runAsUser"]), str(pod["securityContext"]["runAsGroup"])
        confined = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
        with open(os.path.join(folder, "log"), "w+", encoding="utf-8") as log:
            daemon = machine.start([*confined, os.path.join(BUILD, "bin", "cgxd"), "--config", config, *arguments],
                                   stdout=log, stderr=log)
            try:
                for probe in ("readinessProbe", "livenessProbe"):
                    program, *words = container[probe]["exec"]["command"]
                    self.await_success(machine, [*confined, os.path.join(BUILD, "bin", program), *words], log)
                scraped = self.annotations(*settings)
                self.assertEqual((scraped["prometheus.io/scrape"], scraped.get("prometheus.io/port")),
                                 ("true", str(scraped_port)) if scraped_port else ("false", None))
                if scraped_port:
                    ask = "import sys, urllib.request as u; sys.exit(u.urlopen(sys.argv[1], timeout=5).status != 200)"
                    self.await_success(machine, [sys.executable, "-c", ask, f"http://{OF_KUBERNETES}:{scraped_port}/metrics"], log)
                log.seek(0)
                self.assertIn(f'"mesh":"{machine.address}:7070"', log.read())
                self.assertTrue(os.path.exists(os.path.join(run, "cgxd.sock")))
            finally:
                daemon.terminate()
                daemon.wait(20)

    @staticmethod
    def make_place(run, key, config, text):
        os.makedirs(run)
        os.chown(run, 984, 984)
        with open(key, "w", encoding="utf-8") as file:
            file.write("0123456789abcdef")
        os.chown(key, 0, 984)
        os.chmod(key, 0o440)
        with open(config, "w", encoding="utf-8") as file:
            file.write(text.replace("/etc/cgxd-key/key", key))

    def await_success(self, machine, words, log):
        deadline = time.monotonic() + 20
        while (done := machine.run(words, capture_output=True, text=True)).returncode:
            if time.monotonic() > deadline:
                log.seek(0)
                self.fail(f"{words}: {done.stderr}\n{log.read()}")
            time.sleep(0.1)


if __name__ == "__main__":
    unittest.main()

"""Ranks that bring all they need: CGX_AUTOSTART=1 starts daemons on two machines, CGX_LEADER is where ranks meet."""

import os
import unittest

import sums
from cluster_case import ClusterCase
from daemons import binary
from machines import isolation_possible
from ranks import Job, Rank, Tensor

ARENA = 8 << 20
SMALL = Tensor("bias", (41,), op=sums.AVG)  # travels exactly under the default policy


@unittest.skipUnless(isolation_possible(), "needs machines of their own")
class Autostart(ClusterCase):
    """The class's daemons stand beside; nobody here connects to them."""

    def start(self, **environment):
        job = Job(self.daemons, [], open_now=False)
        self.addCleanup(job.close)
        job.places = [0, 1]
        for machine in self.machines:
            socket = os.path.join(job.folder, f"{machine.index}.sock")
            job.ranks.append(Rank(None, machine=machine, CGX_SOCKET=socket, CGX_AUTOSTART="1", CGXD=binary("cgxd"),
                                  **environment))
        job.must("open", job.name, "-", ARENA)
        return job

    def address(self, index=0):
        return self.machines[index].address

    def log_of(self, job, index):
        """Of the daemon that a rank has started, once it says what it serves: ranks are in before that."""
        def text():
            with open(os.path.join(job.folder, f"{index}.sock.log"), encoding="utf-8") as file:
                return file.read()
        self.wait_until(lambda: " mesh=" in text(), "the line that says what it serves")
        return text()

    def test_the_network_is_what_cgx_network_or_the_launcher_says(self):
        network = self.address().rsplit(".", 1)[0] + ".0/24"
        for words in ({"CGX_NETWORK": network},
                      {"MASTER_ADDR": self.address(), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"},
                      {"MASTER_ADDR": self.address(), "WORLD_SIZE": "2"},
                      {"OMPI_MCA_orte_hnp_uri": f"77.0;tcp://{self.address()}:4711", "OMPI_COMM_WORLD_SIZE": "2",
                       "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
                      {"SLURM_LAUNCH_NODE_IPADDR": self.address(1), "SLURM_NNODES": "2"}):
            with self.subTest(words):
                job = self.start(**words)
                comm = job.join(tensors=(SMALL,))
                job.step(comm, 1)
                for index in range(2):
                    self.assertIn(f"mesh={self.address(index)}:", self.log_of(job, index))
                job.close()

    def test_ranks_without_a_store_meet_at_the_leader(self):
        """Nothing but libcgx, no launcher's store: on two machines."""
        job = self.start(CGX_NETWORK=self.address().rsplit(".", 1)[0] + ".0/24", CGX_LEADER=f"{self.address()}:4800")
        for rank in (1, 0):  # who leads comes last
            job.create_soon(rank, trick="leader")
        comm = [job.ranks[rank].receive() for rank in (0, 1)][0].value
        job.register(comm, (SMALL,))
        job.must("commit", comm)
        job.tensors = (SMALL,)
        job.step(comm, 1)

    def test_a_launcher_that_says_one_machine_opens_no_door(self):
        job = self.start(MASTER_ADDR=self.address(), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        self.assertIn("mesh=127.0.0.1:", self.log_of(job, 0))


if __name__ == "__main__":
    unittest.main()

"""What tests of the Python package share: a daemon of their own, ranks as threads, a store."""

import threading
import unittest

from private_daemon import PrivateDaemon

import cgx


class Store:
    """What all ranks reach: get waits for put."""

    def __init__(self):
        self._values, self._changed = {}, threading.Condition()

    def put(self, key, value):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, 20):
                raise TimeoutError(key)
            return self._values[key]


def on_ranks(size, body):
    """Runs body(rank) in `size` threads; raises the first error."""
    errors = []

    def guarded(rank):
        try:
            body(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class WithDaemon(unittest.TestCase):
    SETTINGS = ()  # of the daemon: KEY=VALUE

    def setUp(self):
        self.daemon = PrivateDaemon(arguments=[word for each in self.SETTINGS for word in ("--set", each)])
        self.addCleanup(self.daemon.stop)

    def session(self, **options):
        session = cgx.Session(socket=self.daemon.socket, job="test", **options)
        self.addCleanup(session.close)
        return session

    def on_communicator(self, size, body, name="world"):
        """Runs body(communicator) on every rank of one communicator."""
        store = Store()

        def rank_body(rank):
            session = self.session()
            body(session.communicator(name, rank, size, store.put, store.get, timeout=30))

        on_ranks(size, rank_body)

"""Pod addresses: one loopback address a Pod, out of a /24 of 127.0.0.0/8 that belongs to this data directory.

Lives here: choosing and giving back. May not live here: who listens there. `pod` calls it next.
"""

import socket
from collections.abc import Iterable

from controlplane.embedded.node.limits import PODS_MAX


class NoAddress(Exception):
    """Every address of the Pod network is taken, or the ports wanted are in use on all of them."""


class AddressPool:
    """Addresses of `network` (three octets, such as `127.31.7`). An address given back is reused last."""

    def __init__(self, network: str) -> None:
        self._network = network
        self._free = [f"{network}.{host}" for host in range(2, 2 + PODS_MAX)]
        self._taken: set[str] = set()

    def keep(self, address: str) -> bool:
        """Take a certain address, whatever listens there (a Pod that runs). False if it is not ours to give."""
        if address not in self._free:
            return False
        self._free.remove(address)
        self._taken.add(address)
        return True

    def take(self, ports: Iterable[int], wish: str = "") -> str:
        """An address on which `ports` can be listened on: `wish` if that is free. Raises NoAddress."""
        wanted = tuple(ports)
        candidates = [wish, *self._free] if wish in self._free else self._free
        for address in candidates:
            if all(_is_free(address, port) for port in wanted):
                self.keep(address)
                return address
        raise NoAddress(
            f"no address of {self._network}.0/24 has port {', '.join(map(str, wanted)) or 'any'} free"
            if self._free
            else f"all {PODS_MAX} addresses of {self._network}.0/24 are taken"
        )

    def give_back(self, address: str) -> None:
        """Nobody uses it any more."""
        if address in self._taken:
            self._taken.remove(address)
            self._free.append(address)


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError:
            return False
    return True

"""The first process of the node's namespaces: it keeps them, and reaps what is orphaned in them. Standard library only.

Run by `namespaces` as `python3 holder.py FOLDER…` inside new mount, process and network namespaces. Each FOLDER is
covered by an empty file system of the node's own. When this process is killed, the kernel ends every process of the
node, and with the last one its mounts.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

REAP_S = 0.2


def main(folders: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    for folder in folders:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "kruntimes-node", folder], check=True)
    print("ready", flush=True)
    while True:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
            continue
        time.sleep(REAP_S)


if __name__ == "__main__":
    main(sys.argv[1:])

import os
import signal
import sys
import time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
open(os.environ["MARK"], "w").close()
while True:  # A signal that comes just before a long sleep begins is seen only after it.
    time.sleep(0.02)

import os
import signal
import sys
import time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
open(os.environ["MARK"], "w").close()
time.sleep(300)

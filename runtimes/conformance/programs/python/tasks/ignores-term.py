import os
import signal
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.environ["MARK"], "w").close()
time.sleep(300)

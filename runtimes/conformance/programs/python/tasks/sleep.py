import os
import time

open(os.environ["MARK"], "w").close()
time.sleep(300)

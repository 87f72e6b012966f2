import os
import subprocess
import time


def invoke(request):
    for extra in ({}, {"start_new_session": True}):
        subprocess.Popen(["sleep", "300"], **extra)
    daemon = os.fork()
    if daemon == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(300)
    open(request["started"], "w").write(str(os.getpid()))
    time.sleep(300)

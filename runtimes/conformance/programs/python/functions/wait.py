import os
import time


def invoke(request):
    open(request["started"], "w").close()
    while not os.path.exists(request["until"]):
        time.sleep(0.005)
    return {"outputs": {"pid": os.getpid()}}

import os
import time

if os.path.exists(os.environ["MARK"]):
    time.sleep(300)
open(os.environ["MARK"], "w").close()


def invoke(request):
    os._exit(3)

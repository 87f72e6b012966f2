import time

time.sleep(300)


def invoke(request):
    return {}

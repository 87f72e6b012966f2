calls = 0


def invoke(request):
    global calls
    calls += 1
    return {"outputs": {"calls": calls}}

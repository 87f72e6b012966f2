import sys


def invoke(request):
    for i in range(int(request["lines"])):
        print("line", i)
    print("error line", file=sys.stderr)
    print("no newline", end="")
    return {"outputs": {}}

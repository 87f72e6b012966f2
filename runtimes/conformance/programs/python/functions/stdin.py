import sys


def invoke(request):
    return {"outputs": {"stdin": sys.stdin.read()}}

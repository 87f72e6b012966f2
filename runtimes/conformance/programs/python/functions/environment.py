import os


def invoke(request):
    return {"outputs": dict(os.environ, CWD=os.getcwd())}

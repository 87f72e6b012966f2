import os


def invoke(request):
    print("noise", flush=True)
    os.write(1, b'{"outputs": {"forged": 1}}')
    os.system("echo child noise; echo child error >&2")
    return {"outputs": {"true": 1}}

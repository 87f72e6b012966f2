import os


def invoke(request):
    folder = os.environ["KRUNTIME_ARTIFACTS_DIR"]
    left = len(os.listdir(folder))
    if "put" in request:
        with open(os.path.join(folder, "a.txt"), "w") as file:
            file.write(request["put"])
    if request.get("fail"):
        raise ValueError("failed after it had put something")
    return {"outputs": {"left": left}}

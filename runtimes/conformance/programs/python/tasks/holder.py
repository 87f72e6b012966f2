import subprocess

subprocess.Popen(["sleep", "300"])
print("done")

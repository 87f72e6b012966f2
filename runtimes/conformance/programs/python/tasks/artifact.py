import os
import sys

folder = os.path.join(os.environ["KRUNTIME_ARTIFACTS_DIR"], "deep")
os.mkdir(folder)
with open(os.path.join(folder, "a.txt"), "w") as file:
    file.write("text")
sys.exit(int(sys.argv[1]))

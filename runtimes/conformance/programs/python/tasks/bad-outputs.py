import os

open(os.environ["KRUNTIME_OUTPUTS"], "a").write("no equals sign\n")

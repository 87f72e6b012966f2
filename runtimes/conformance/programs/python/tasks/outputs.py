import os
import sys

print("hello", *sys.argv)
print("problem", file=sys.stderr)
with open(os.environ["KRUNTIME_OUTPUTS"], "a") as f:
    f.write("a=1\nb<<END\nx\ny\nEND\na=2\n")
sys.exit(int(sys.argv[1]))

"""`python -m controlplane.embedded.apiserver`: the same as the supervisor's call of `main`."""

import sys

from controlplane.embedded.apiserver.main import main

if __name__ == "__main__":
    sys.exit(main())

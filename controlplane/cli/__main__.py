"""`python -m controlplane.cli` is `krt`."""

import sys

from controlplane.cli.main import main

sys.exit(main())

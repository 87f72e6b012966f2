"""`python -m controlplane`: the control plane's process."""

import sys

from controlplane.main import main

sys.exit(main())

"""`python -m controlplane.hooks`: one Job of the chart."""

import sys

from controlplane.hooks.main import main

sys.exit(main())

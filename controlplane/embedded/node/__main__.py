"""`python -m controlplane.embedded.node`: the node's process, as the supervisor runs it."""

import sys

from controlplane.embedded.node.main import main

sys.exit(main())

"""`python -m runtimes.server`."""

import sys

from runtimes.server.main import main

sys.exit(main())

"""`python -m dataplane.runtimed`: the container's entry point. Nothing else lives here."""

from dataplane.runtimed.main import main

raise SystemExit(main())

"""`python -m dataplane.gateway`: the container's entry point. Nothing else lives here."""

from dataplane.gateway.main import main

raise SystemExit(main())

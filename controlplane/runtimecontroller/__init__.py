"""A Runtime becomes a Deployment, a Service and an identity; its status says what of it stands ready."""

"""`logs.kruntimes.io`: the log and the journal of a Run through the Kubernetes API, on one machine and on a cluster."""

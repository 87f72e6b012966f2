"""The embedded Kubernetes-compatible API server: objects in SQLite, one revision log that is also the watch history.

Lives here: storage, verbs, watch, discovery, Tables, authentication and authorisation, garbage collection.
May not live here: anything that runs Pods or knows what a Run's phases mean. The supervisor starts `main.main` next.
"""

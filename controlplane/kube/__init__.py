"""The one adapter to the Kubernetes API: typed objects, transport, informers, translation to events, patches.

Nothing here decides anything about a Run: `statemachine` does. Control plane and data plane both import from here.
"""

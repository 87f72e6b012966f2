"""The front of the request path: HTTPS in, one multiplexed call to the owner's Pod out.

Here: HTTP exactness, who may call, where a Run lives, the answer's shape. Not here: the lifecycle, the user's code.
"""

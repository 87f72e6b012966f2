"""The Python Runtime: the adapter that the Runtime Server uses; `zygote.py`, run by the user's interpreter."""

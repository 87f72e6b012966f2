"""The Python Runtime: `adapter` is the Runtime Server's; all else is run by the user's interpreter, `zygote` first."""

"""The installation CA: a ten-year root, an intermediate that is replaced in time, and who gets which certificate."""

"""The embedded API server: its parts alone, the whole over HTTPS, and unmodified kubectl against it."""

"""The `krt` command: `main.py` assembles it, one module a group of commands. Nothing else imports this package."""

"""The Bash Runtime: the adapter that the Runtime Server uses, and `driver.sh`, which runs in each worker."""

invoke() { echo "the cause of it" >&2; return 3; }

echo "load failed on purpose" >&2
exit 4

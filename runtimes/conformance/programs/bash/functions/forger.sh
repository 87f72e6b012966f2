invoke() { echo noise >&2; { sleep 1; echo "{}"; } & echo '{"outputs": {"true": 1}}'; }

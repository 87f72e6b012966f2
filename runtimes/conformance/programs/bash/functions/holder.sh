invoke() { sleep 300 & echo '{"outputs": {"left": "one"}}'; }

invoke() { printf '{"outputs": {"request": %s}}' "$(cat)"; }

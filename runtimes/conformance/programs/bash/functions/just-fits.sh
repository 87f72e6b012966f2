invoke() { printf '{"outputs": {"x": "%01000000d"}}' 0; }

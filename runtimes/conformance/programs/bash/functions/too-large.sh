invoke() { printf '{"outputs": {"x": "%01100000d"}}' 0; }

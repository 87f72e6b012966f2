[ -e "$MARK" ] && sleep 300
: >"$MARK"
invoke() { kill -9 0; }

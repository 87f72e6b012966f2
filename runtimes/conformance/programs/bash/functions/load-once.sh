[ -e "$MARK" ] && exit 5
: >"$MARK"
invoke() { kill -9 0; }

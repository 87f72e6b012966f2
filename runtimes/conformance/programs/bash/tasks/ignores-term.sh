trap '' TERM
: >"$MARK"
sleep 300

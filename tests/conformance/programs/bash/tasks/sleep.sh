: >"$MARK"
sleep 300

sleep 300 &
echo done

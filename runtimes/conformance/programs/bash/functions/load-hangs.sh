sleep 300
invoke() { :; }

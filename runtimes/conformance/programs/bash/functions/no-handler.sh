other() { :; }

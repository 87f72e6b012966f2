invoke() { echo '{"outputs": {"true": 1}}'; exec 1>&- 2>&-; }

echo "no equals sign" >>"$KRUNTIME_OUTPUTS"

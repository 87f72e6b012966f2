invoke() {
  echo "CWD=$PWD" >>"$KRUNTIME_OUTPUTS"
  env >>"$KRUNTIME_OUTPUTS"
}

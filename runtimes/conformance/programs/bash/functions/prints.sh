invoke() {
  body=$(cat)
  lines=${body#*\"lines\":} lines=${lines%%\}*}
  for ((i = 0; i < lines; i++)); do echo "line $i"; done
  echo "error line" >&2
  printf "no newline"
  echo "done=1" >>"$KRUNTIME_OUTPUTS"
}

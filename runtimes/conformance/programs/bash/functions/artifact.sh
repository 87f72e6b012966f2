invoke() {
  local request left
  request=$(cat)
  left=$(ls "$KRUNTIME_ARTIFACTS_DIR" | wc -l)
  if [[ $request =~ \"put\":\ ?\"([^\"]*)\" ]]; then
    echo "${BASH_REMATCH[1]}" > "$KRUNTIME_ARTIFACTS_DIR/a.txt"
  fi
  [[ $request != *fail* ]] || return 1
  echo "{\"outputs\": {\"left\": $((left))}}"
}

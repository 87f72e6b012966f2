mkdir "$KRUNTIME_ARTIFACTS_DIR/deep"
echo text > "$KRUNTIME_ARTIFACTS_DIR/deep/a.txt"
exit "$1"

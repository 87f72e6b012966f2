echo "hello" "$0" "$@"
echo problem >&2
printf 'a=1\nb<<END\nx\ny\nEND\na=2\n' >>"$KRUNTIME_OUTPUTS"
exit "$1"

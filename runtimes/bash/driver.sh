# The worker of one Bash function: `bash driver.sh FILE FUNCTION FOLDER`, the private channel on descriptor 60.
#
# It sources FILE once, at top level, then runs FUNCTION in a fresh subshell for each line `SEQUENCE ID DEADLINE TRACEPARENT`
# on the channel, numbered from 1, and answers `SEQUENCE STATUS`. The request is FOLDER/request.SEQUENCE; what the
# handler prints goes into the named pipe FOLDER/answer.SEQUENCE, made for this one call, so that a process left over from
# an earlier call has no way into it. adapter.py is at the other end. Names begin with __kruntime_ since the user's file
# shares them; builtins are called as such since the user's file may define functions of their names.

__kruntime_file=$1 __kruntime_handler=$2 __kruntime_folder=$3
builtin set --

builtin source "./$__kruntime_file" 60>&-
__kruntime_status=$?
__kruntime_options=$-
builtin set +evx

if builtin declare -F -- "$__kruntime_handler" >/dev/null; then
  builtin printf 'started %s\n' "$__kruntime_status" >&60
else
  builtin printf 'missing %s\n' "$__kruntime_status" >&60
  builtin exit 0
fi

__kruntime_sequence=0
while :; do
  __kruntime_sequence=$((__kruntime_sequence + 1))
  (
    # It is forked before its call comes, so that no call waits for the fork. At the end of the channel all is over.
    IFS=' ' builtin read -r -u 60 __kruntime_sequence __kruntime_id __kruntime_deadline __kruntime_trace ||
      builtin kill -KILL "$$"
    exec <"$__kruntime_folder/request.$__kruntime_sequence" >"$__kruntime_folder/answer.$__kruntime_sequence" 60>&-
    builtin export KRUNTIME_REQUEST_FILE="$__kruntime_folder/request.$__kruntime_sequence" \
      KRUNTIME_OUTPUTS="$__kruntime_folder/outputs.$__kruntime_sequence" \
      KRUNTIME_INVOCATION_ID="$__kruntime_id" KRUNTIME_DEADLINE="$__kruntime_deadline" KRUNTIME_TRACEPARENT="$__kruntime_trace"
    case $__kruntime_options in *x*) builtin set -x ;; esac
    case $__kruntime_options in *e*) builtin set -e ;; esac
    "$__kruntime_handler"
  )
  builtin printf '%s %s\n' "$__kruntime_sequence" "$?" >&60
done

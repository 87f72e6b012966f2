# The worker of one Bash function: `bash driver.sh FILE FUNCTION`, the private channel on descriptor 60. On 61 it is told
# `TOKEN FOLDER`: a command line is read by everybody on the machine.
#
# It sources FILE once, at top level, then runs FUNCTION in a fresh subshell for each `ID DEADLINE TRACEPARENT` on the
# channel (behind its length in three digits: a line would be read byte by byte), and answers `NUMBER STATUS`, numbered
# from 1. The request is FOLDER/request.NUMBER; what the handler prints goes into the named pipe FOLDER/answer.NUMBER.
# Both are made for this one call, so that a process left over from an earlier call has no way into it, and before it:
# what can be done ahead is done ahead. A handler that returns with its output
# where it was says there which EXIT trap it has set, and, behind a zero byte and TOKEN, its status: without a trap the
# call is over, and nobody waits until its process has been taken down. adapter.py is at the other end. Names begin with
# __kruntime_ since the user's file shares them; builtins are called as such since it may define functions of their names.

__kruntime_file=$1 __kruntime_handler=$2
builtin set --
IFS='' builtin read -r -u 61 __kruntime_folder
exec 61<&-
__kruntime_token=${__kruntime_folder%% *} __kruntime_folder=${__kruntime_folder#* }

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

__kruntime_say() {
  if [[ /proc/self/fd/1 -ef $__kruntime_answer ]]; then
    builtin trap -p EXIT
    builtin printf '\0%s %s\0' "$__kruntime_token" "$1"
  fi
  builtin return "$1"
}

__kruntime_number=0
while :; do
  __kruntime_number=$((__kruntime_number + 1))
  (
    __kruntime_answer=$__kruntime_folder/answer.$__kruntime_number
    builtin export KRUNTIME_REQUEST_FILE="$__kruntime_folder/request.$__kruntime_number" \
      KRUNTIME_OUTPUTS="$__kruntime_folder/outputs.$__kruntime_number" \
      KRUNTIME_INVOCATION_ID KRUNTIME_DEADLINE KRUNTIME_TRACEPARENT
    { exec <"$KRUNTIME_REQUEST_FILE" >"$__kruntime_answer"; } 2>&- && __kruntime_open=1 || __kruntime_open=
    # Here it waits for its call. At the end of the channel all is over.
    builtin read -r -u 60 -N 3 __kruntime_call || builtin kill -KILL "$$"
    builtin read -r -u 60 -N "$__kruntime_call" __kruntime_call || builtin kill -KILL "$$"
    exec 60>&-
    # They are there now (the disk was full), or user code has removed them: then this worker is of no use.
    [[ $__kruntime_open ]] || exec <"$KRUNTIME_REQUEST_FILE" >"$__kruntime_answer" || builtin kill -KILL "$$"
    KRUNTIME_INVOCATION_ID=${__kruntime_call%% *} __kruntime_call=${__kruntime_call#* }
    KRUNTIME_DEADLINE=${__kruntime_call%% *} KRUNTIME_TRACEPARENT=${__kruntime_call#* }
    case $__kruntime_options in *x*) builtin set -x ;; esac
    case $__kruntime_options in *e*) builtin set -e ;; esac
    "$__kruntime_handler"
    { __kruntime_say "$?"; } 2>&-  # No trace of it, if the handler has set one.
  )
  builtin printf '%s %s\n' "$__kruntime_number" "$?" >&60
done

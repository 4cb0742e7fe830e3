# Completion of cudapool(1) for bash.

# Settings: made by `make settings`.
_cudapool_settings() {
    printf '%s\n' \
        device.enabled device.buckets.policy device.buckets.steps_per_doubling \
        device.buckets.smallest device.buckets.largest device.segments.small device.segments.large \
        device.caps.cached device.caps.blocks_per_bucket device.caps.reserve_ratio \
        device.reserve_floor device.growth_budget device.hot_bytes device.evict \
        device.release_after_idle device.barriers device.free_synchronizes stream_ordered.enabled \
        stream_ordered.buckets.policy stream_ordered.buckets.steps_per_doubling \
        stream_ordered.buckets.smallest stream_ordered.buckets.largest \
        stream_ordered.segments.small stream_ordered.segments.large stream_ordered.caps.cached \
        stream_ordered.caps.blocks_per_bucket stream_ordered.caps.reserve_ratio \
        stream_ordered.reserve_floor stream_ordered.reuse.opportunistic \
        stream_ordered.reuse.internal_dependencies stream_ordered.evict \
        stream_ordered.release_after_idle stream_ordered.driver_release_threshold host.enabled \
        host.buckets.policy host.buckets.steps_per_doubling host.buckets.smallest \
        host.buckets.largest host.caps.cached host.caps.blocks_per_bucket host.caps.reserve_ratio \
        host.growth_budget host.evict host.release_after_idle host.free_synchronizes host.large \
        captures.allocate captures.memory_nodes neighbours.enabled neighbours.leave_free \
        limits.device_bytes limits.group limits.group_bytes limits.tell_total report.at_exit \
        report.file figures.enabled figures.directory figures.keep
}
# End of settings.

# A word of the list, or a file where there is no list.
_cudapool_words() { # word [list]
    if [ $# -gt 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$2" -- "$1")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$1")
        compopt -o filenames 2>/dev/null
    fi
}

_cudapool_words_and_files() { # word, list
    _cudapool_words "$1"
    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W "$2" -- "$1")
}

_cudapool_configs() {
    echo default low-memory strict throughput
}

# Where the program's name stands among run's arguments; nothing where it is not yet there.
_cudapool_program_at() {
    local i
    for ((i = 2; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --)
            echo $((i + 1))
            return
            ;;
        --config | --report | --set | --warm-up | --json | -n)
            i=$((i + 1))
            # --option=value, and --set's setting=value, are three words each.
            [ "${COMP_WORDS[i]-}" != = ] || i=$((i + 1))
            [ "${COMP_WORDS[i + 1]-}" != = ] || i=$((i + 2))
            ;;
        -* | =) ;;
        *)
            echo "$i"
            return
            ;;
        esac
    done
}

_cudapool_run() { # word, previous word, options
    local program
    program=$(_cudapool_program_at)
    if [ -n "$program" ] && [ "$program" -le "$COMP_CWORD" ]; then
        if declare -F _command_offset >/dev/null; then
            _command_offset "$program"
        else
            _cudapool_words "$1"
        fi
        return
    fi
    case $2 in
    --set)
        _cudapool_words "$1" "$(_cudapool_settings)"
        compopt -o nospace 2>/dev/null
        COMPREPLY=("${COMPREPLY[@]/%/=}")
        ;;
    --config) _cudapool_words_and_files "$1" "$(_cudapool_configs)" ;;
    --report)
        _cudapool_words_and_files "$1" "none stderr"
        ;;
    --json) _cudapool_words "$1" ;;
    --warm-up | -n) ;;
    *)
        case $1 in
        -*) _cudapool_words "$1" "$3" ;;
        *) mapfile -t COMPREPLY < <(compgen -c -- "$1") ;;
        esac
        ;;
    esac
}

# Processes that have figures, by the names of their files.
_cudapool_processes() {
    local file
    for file in "${XDG_RUNTIME_DIR:-/dev/shm}"/cudapool-*/*.figures /dev/shm/cudapool-*/*.figures; do
        file=${file##*/}
        [[ $file == [0-9]* ]] && printf '%s\n' "${file%%-*}"
    done
}

_cudapool() {
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        _cudapool_words "$word" "run try report top trim limit check configs help --help --version"
        return
    fi
    case ${COMP_WORDS[1]} in
    run) _cudapool_run "$word" "$previous" "--config --set --report --all --help --" ;;
    try) _cudapool_run "$word" "$previous" "-n --warm-up --json --config --set --help --" ;;
    report)
        if [ "$previous" = --format ]; then
            _cudapool_words "$word" "table json csv html prometheus trace"
        elif [[ $word == -* ]]; then
            _cudapool_words "$word" "--format --output --merge --compare --all --help"
        else
            _cudapool_words "$word"
        fi
        ;;
    top)
        if [[ $word == -* ]]; then
            _cudapool_words "$word" "--interval --count --sort --help"
        elif [ "$previous" = --sort ]; then
            _cudapool_words "$word" "process requests hits memory cached name"
        elif [[ $previous != --interval && $previous != --count ]]; then
            _cudapool_words_and_files "$word" "$(_cudapool_processes)"
        fi
        ;;
    trim)
        if [[ $word == -* ]]; then
            _cudapool_words "$word" "--all --device --wait --help"
        elif [[ $previous != --device && $previous != --wait ]]; then
            _cudapool_words "$word" "$(_cudapool_processes)"
        fi
        ;;
    limit)
        if [[ $word == -* ]]; then
            _cudapool_words "$word" "--group --help"
        elif [ "$COMP_CWORD" -eq 2 ]; then
            _cudapool_words "$word" "$(_cudapool_processes)"
        elif [[ $previous != --group ]]; then
            _cudapool_words "$word" "settings"
        fi
        ;;
    check)
        if [[ $word == -* ]]; then
            _cudapool_words "$word" "--all --help"
        else
            _cudapool_words_and_files "$word" "$(_cudapool_configs)"
        fi
        ;;
    configs) _cudapool_words "$word" "$(_cudapool_configs) schema" ;;
    help) _cudapool_words "$word" "run try report top trim limit check configs" ;;
    esac
}

complete -F _cudapool cudapool

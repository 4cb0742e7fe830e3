#compdef cudapool
# Completion of cudapool(1) for zsh.

# Settings: made by `make settings`.
_cudapool_settings() {
    compadd -S = -- \
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

_cudapool_configs() {
    compadd -- default low-memory strict throughput
}

_cudapool_configs_or_files() {
    _cudapool_configs
    _files
}

_cudapool_reports() {
    compadd -- none stderr
    _files
}

# Processes that have figures, by the names of their files.
_cudapool_processes() {
    local -a files
    files=(${XDG_RUNTIME_DIR:-/dev/shm}/cudapool-*/<->-*.figures(N:t) /dev/shm/cudapool-*/<->-*.figures(N:t))
    compadd -- ${files%%-*}
}

_cudapool_processes_or_directories() {
    _cudapool_processes
    _files -/
}

_cudapool() {
    local curcontext=$curcontext state
    local -a commands
    commands=(
        'run:run a program with memory from the pool'
        'try:run a program without and with the pool, in turn'
        'report:show what reports say\: as a table, a page, and more'
        'top:show what the pool does in processes that are running'
        'trim:have processes give back now what they cache'
        'limit:change how much running processes may take'
        'check:validate settings, and say in words what they mean'
        'configs:list the built-in presets, and print one'
        'help:show the help of a command'
    )
    _arguments -C '(- *)--help[show the help]' '(- *)--version[print the version]' '1:command:->command' '*::argument:->argument'
    case $state in
    command) _describe command commands ;;
    argument)
        case $words[1] in
        run)
            _arguments '*--set[change one setting]:setting:_cudapool_settings' '--config[settings]:settings:_cudapool_configs_or_files' \
                '--report[where the reports go]:report:_cudapool_reports' '--all[all of the table]' '--help[show the help]' \
                '(-):program:_command_names -e' '*::arguments:_normal'
            ;;
        try)
            _arguments '*--set[change one setting]:setting:_cudapool_settings' '--config[settings]:settings:_cudapool_configs_or_files' \
                '-n[runs of each kind]:number:' '--warm-up[runs before these]:number:' '--json[write what was found]:file:_files' \
                '--help[show the help]' '(-):program:_command_names -e' '*::arguments:_normal'
            ;;
        report)
            _arguments '--format[the format]:format:(table json csv html prometheus trace)' '(-o --output)'{-o,--output}'[write to a file]:file:_files' \
                '--merge[all files as one]' '--compare[two runs side by side]' '--all[all of the table]' '--help[show the help]' '*:report:_files'
            ;;
        top)
            _arguments '--interval[between two times]:seconds:' '--count[of times]:number:' \
                '--sort[by what]:key:(process requests hits memory cached name)' '--help[show the help]' '1:process:_cudapool_processes_or_directories'
            ;;
        trim)
            _arguments '--all[all processes]' '--device[on one device alone]:device:' '--wait[for the GPU, at most]:seconds:' \
                '--help[show the help]' '*:process:_cudapool_processes'
            ;;
        limit) _arguments '--group[the processes of a group]:group:' '--help[show the help]' '1:process:_cudapool_processes' '2:size:(settings)' ;;
        check) _arguments '--all[every setting]' '--help[show the help]' '*:settings:_cudapool_configs_or_files' ;;
        configs) _arguments '--help[show the help]' '1:settings:(default low-memory strict throughput schema)' ;;
        help) _arguments '1:command:(run try report top trim limit check configs)' ;;
        esac
        ;;
    esac
}

_cudapool "$@"

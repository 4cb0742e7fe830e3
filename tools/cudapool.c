/*
 * The main function of the cudapool command: answers --help and --version, and runs the subcommand.
 */
#include "tools/command/tool.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/base/nearest.h"

static const struct command *const commands[] = {&run_command,   &try_command,    &report_command,
                                                 &top_command,   &trim_command,   &limit_command,
                                                 &check_command, &configs_command};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int print_help(void)
{
    puts("usage: cudapool COMMAND [ARGUMENTS]\n"
         "\n"
         "Runs CUDA programs with memory from a pool, and shows what the pool did.\n");
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-8s %s\n", commands[i]->name, commands[i]->summary);
    puts("  help     show this, or `cudapool help COMMAND` for one command\n"
         "\n"
         "cudapool --version, or -V, prints the version.\n"
         "Exit status: 0; 1 where the output cannot be written, or trim or limit got no answer; 2 "
         "for bad\n"
         "input; with run, the program's own, 128 and the number of the signal that ended it, 126 "
         "or 127.");
    return finish_output(0);
}

static int print_command_help(const struct command *command)
{
    fputs(command->help, stdout);
    return finish_output(0);
}

static const struct command *command_named(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[COMMANDS + 1] = {"help"};

    for (size_t i = 0; i < COMMANDS; i++)
        names[i + 1] = commands[i]->name;
    const char *nearest = nearest_word(name, names, COMMANDS + 1);
    return complain(
        "unknown command \"%s\"; allowed are run, try, report, top, trim, limit, check, "
        "configs and help%s%s%s",
        name, nearest == NULL ? "" : "; did you mean ", nearest == NULL ? "" : nearest,
        nearest == NULL ? "" : "?");
}

static int help(const char *name)
{
    const struct command *command = name == NULL ? NULL : command_named(name);

    if (name == NULL)
        return print_help();
    return command == NULL ? unknown_command(name) : print_command_help(command);
}

static bool asks_for_help(const char *argument)
{
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

int main(int argc, char **argv)
{
    begin_output();
    if (argc < 2)
        return complain("no command given; `cudapool help` lists them");
    if (asks_for_help(argv[1]) || strcmp(argv[1], "help") == 0)
        return help(argc > 2 ? argv[2] : NULL);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        puts("cudapool " CUDAPOOL_VERSION);
        return finish_output(0);
    }
    const struct command *command = command_named(argv[1]);
    if (command == NULL)
        return unknown_command(argv[1]);
    if (argc > 2 && asks_for_help(argv[2]))
        return print_command_help(command);
    return command->run(argc - 1, argv + 1);
}

"""The command line of ckstore. It parses the arguments, calls the library once, and prints the result.

The library contains all rules of the store. Each command is a module of `ckstore_cli.commands`, and `app` lists the
commands. Only this package prints results, finds a store through the environment, and handles terminals.

    app          entry point and table of commands
    _frame       options --store and --json, and opening the store
    _place       search for the store
    _output      output to stdout and stderr
    _options     options of several commands
    _types       types of option values
    _retention   retention options, printed plans
    _transfer    options of push, pull and evict
    _errors      errors and exit statuses
    _format      sizes, ages, tables
    _documents   JSON documents
    _refs        completion of refs and runs
    _completion  completion of RUN@STEP in bash
    _progress    progress line on a terminal
"""

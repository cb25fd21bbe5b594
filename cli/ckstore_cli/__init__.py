"""The command line of ckstore: parse, call the library once, report.

No rule of the store lives here. Each command is a module of `ckstore_cli.commands`; `app` holds the
table of them. Only this package prints, reads the environment or knows about terminals:

    app          entry point; which command is where
    _frame       what every command gets: the options --store and --json, and the store
    _place       where the store is
    _output      what is printed, and how
    _options     options that several commands have
    _errors      errors and exit statuses
    _format      sizes, ages, tables
    _documents   the JSON forms
    _refs        completion of refs and runs
    _completion  what bash needs to complete RUN@STEP
    _progress    one line on a terminal while long work goes on
"""

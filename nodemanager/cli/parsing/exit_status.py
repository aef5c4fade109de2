"""The exit statuses of the command line: the numbers of sysexits.h, and how shells report signals."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # as argparse has it
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE
EXIT_NO_PERMISSION = 77  # EX_NOPERM
EXIT_CONFIG = 78  # EX_CONFIG
EXIT_OF_SIGNAL = 128  # plus the signal's number
EXIT_INTERRUPTED = 130  # SIGINT
EXIT_CLOSED = 141  # SIGPIPE
EXIT_TERMINATED = 143  # SIGTERM

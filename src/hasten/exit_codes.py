"""What the process ends with (design: one table for all commands)."""

DONE = 0
FAILED = 1
USAGE = 2
GATE = 3  # a comparison or quality gate said no; nothing went wrong
DOES_NOT_FIT = 4
INTERRUPTED = 130
